"""One worker in one boundary on macOS: what `session` does with Bubblewrap, with Seatbelt.

The proxy listens before the worker starts, on the machine's own loopback, which every program can reach: so its clients
have to show a token, which the worker finds in its environment and nobody in any argv.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import skep_seatbelt
from skep_bwrap.errors import BackendUnavailable
from skep_policy.boundary import Boundary
from skep_policy.launch import Launch
from skep_policy.report import Finding

from .findings import look_after
from .host import Host
from .session import Outcome, Session

if TYPE_CHECKING:
    from skep_proxy import Proxy

TRIES = 20
"""Ports of which one is free in both families."""

NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""There is no ::1, so nobody listens at the other one."""


def launch_there(
    session: Session,
    argv: Sequence[str],
    *,
    host: Host,
    proxied: bool,
    quarantine: str,
    stdio: tuple[int, int, int],
    compiled: Callable[[Launch], None] | None,
    spawned: Callable[[skep_seatbelt.Sandbox], None] | None,
    started: Callable[[], None] | None,
    begun: int,
) -> Outcome:
    """As `session.launch`, which calls it and began at `begun`. Raises BackendUnavailable, and Unenforceable, a
    PolicyError, for what macOS cannot hold.
    """
    boundary = host.boundary(session.boundary)

    def on_spawn(sandbox: skep_seatbelt.Sandbox) -> None:
        sandbox.wake = session.wake()
        session.forward_to(sandbox)
        if spawned is not None:
            spawned(sandbox)

    try:
        outcome = skep_seatbelt.run(
            boundary,
            argv,
            proxy=listening(session.proxy(), boundary) if proxied else None,
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            sandbox_exec=host.sandbox_exec,
            log=host.log,
            compiled=compiled,
            spawned=on_spawn,
            started=started,
        )
    except skep_seatbelt.BackendUnavailable as error:
        raise BackendUnavailable(error.problem, fix=error.fix, check=error.check) from None
    finally:
        session.close()
    return Outcome(
        exit_code=outcome.exit_code,
        limit=outcome.limit,
        layers=outcome.layers,
        attestation=dict(outcome.attestation),
        findings=[*look_after(session.boundary, quarantine, since=begun), *_findings(outcome)],
        egress=session.egress,
        exec_error=outcome.exec_error,
        evidence=outcome.evidence,
        output_error=outcome.output_error,
    )


def listening(proxy: Proxy, boundary: Boundary) -> skep_seatbelt.Proxy:
    """The proxy has a port of both loopback addresses: a profile allows a port, whoever listens at the other one.
    Raises OSError, BackendUnavailable.
    """
    token = skep_seatbelt.new_token()
    for _ in range(TRIES):
        _, port = proxy.listen_tcp("127.0.0.1", 0, boundary.rules, token=token)
        try:
            proxy.listen_tcp("::1", port, boundary.rules, token=token)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                proxy.close_listeners(boundary.rules)
                continue
            if error.errno not in NO_IPV6:
                raise
        return skep_seatbelt.Proxy(port, token)
    raise BackendUnavailable("no port of the loopback is free in IPv4 and IPv6", check="proxy")


def _findings(outcome: skep_seatbelt.Outcome) -> list[Finding]:
    """What only this system tells: processes that outran their end, and what the log says was denied."""
    found: list[Finding] = []
    if outcome.left:
        found.append(Finding("left-running", "", f"{outcome.left} processes of the worker could not be ended"))
    for denial in filter(skep_seatbelt.matters, outcome.denials):
        times = f" ({denial.count} times)" if denial.count > 1 else ""
        what = f"{denial.operation} of {denial.process}{times}"
        told = skep_seatbelt.remedy(denial)
        found.append(Finding("denied", denial.target, f"{what}: {told}" if told else what))
    return found
