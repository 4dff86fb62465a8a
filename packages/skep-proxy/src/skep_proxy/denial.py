"""What a client is told when it may not go somewhere, or could not be taken there. Pure.

A denial is `403 Forbidden` with `X-Skep-Reason: REASON` (a word of `Verdict.reason`'s vocabulary) and a plain-text
body of two lines: what was denied and why, and what would allow it. A failure is 502, 503 or 504 in the same form.
"""

from __future__ import annotations

from skep_policy import Verdict
from skep_policy.verdict import BUDGET, DENIED_BY_RULE, MALFORMED, NOT_LISTED, PRIVATE_ADDRESS, SNI_MISMATCH

NOT_ADMITTED = "not-admitted"
"""Reason of a request without the token that its listener wants."""

NOT_RECORDED = "not-recorded"
"""Reason of a request that was refused since its decision could not be written down."""

PHRASES = {
    400: b"Bad Request",
    403: b"Forbidden",
    407: b"Proxy Authentication Required",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}

WEB_PORTS = (80, 443)


def flag_for(host: str, port: int) -> str:
    """The flag that would allow a target: the shortest rule that matches it."""
    host = _printable(host)
    shown = f"[{host}]" if ":" in host and port not in WEB_PORTS else host
    return f"--allow {shown}" if port in WEB_PORTS else f"--allow {shown}:{port}"


def explain_denial(host: str, port: int, verdict: Verdict) -> tuple[str, str]:
    """(what was denied and why, what would allow it), one line each, without a line end."""
    where = f"{_printable(host)}:{port}" if ":" not in host else f"[{_printable(host)}]:{port}"
    rule = f"rule {verdict.rule!r}" + (f" ({verdict.source})" if verdict.source else "")
    match verdict.reason:
        case reason if reason == NOT_LISTED:
            return f"{where} is not allowed: no rule names it", f"allow it with: {flag_for(host, port)}"
        case reason if reason == DENIED_BY_RULE:
            return f"{where} is denied by {rule}", "a deny rule beats every allow rule: take it out to allow this"
        case reason if reason == PRIVATE_ADDRESS:
            return (
                f"{where} is allowed by {rule} but is a private address",
                f'if that is meant: private = ["{_printable(host)}"] in [network] of the policy',
            )
        case reason if reason == MALFORMED:
            return f"{_printable(host)!r} is not a host", "write a host name, or an address in its usual form"
        case reason if reason == SNI_MISMATCH:
            return f"{where} is not what the tunnel was opened for", f"allow it with: {flag_for(host, port)}"
        case reason if reason == BUDGET:
            return f"{where} has had its bytes (max-bytes-out)", "raise max-bytes-out in [network] of the policy"
        case reason if reason == NOT_RECORDED:
            return f"{where} is refused: the decision could not be recorded", "see why the audit log cannot be written"
        case reason:
            return f"{where} is denied: {reason}", ""


def denied(host: str, port: int, verdict: Verdict, *, keep_alive: bool = False, head: bool = False) -> bytes:
    """The 403 response; without its body when it answers HEAD."""
    lines = explain_denial(host, port, verdict)
    return response(403, verdict.reason, "\n".join(line for line in lines if line), keep_alive=keep_alive, head=head)


def not_admitted(*, head: bool = False) -> bytes:
    """The 407 response."""
    return response(407, NOT_ADMITTED, "this proxy wants its token: user skep, password TOKEN", head=head)


def response(status: int, reason: str, text: str, *, keep_alive: bool = False, head: bool = False) -> bytes:
    """A complete response in skep's form."""
    body = f"skep: {text}\n".encode("ascii", "backslashreplace")
    connection = b"keep-alive" if keep_alive else b"close"
    challenge = b'Proxy-Authenticate: Basic realm="skep"\r\n' if status == 407 else b""
    start = b"HTTP/1.1 %d %b\r\n" % (status, PHRASES[status])
    fields = (
        b"Content-Type: text/plain\r\nContent-Length: %d\r\nX-Skep-Reason: %b\r\n"
        b"Cache-Control: no-store\r\n%bConnection: %b\r\n\r\n"
    ) % (len(body), reason.encode("ascii", "replace"), challenge, connection)
    return start + fields if head else start + fields + body


def _printable(host: str) -> str:
    return host.encode("ascii", "backslashreplace").decode() if host.isprintable() else repr(host)[1:-1]
