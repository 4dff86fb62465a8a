"""Policies of several sources become one, and each value keeps the name of its source.

Layers come in the order of who is overruled: built-in defaults, user file, project file, flags. Lists add up; of
values there is one, and the later layer has it. A layer that is not trusted (the project file comes from the same place
as the code we do not trust) may only narrow, key by key:

    deny, protect, hide                        count
    read = "minimal", sni = "match"            count, their opposites do not
    git = false                                counts, true does not
    wall, memory, processes, file-size,
    max-bytes-out                              count where they are lower, or where there was no limit
    disk-free                                  counts where it is higher, than what is built in too
    write, grant, devices, sockets, allow,
    private, env, worker, verify, setup        do not

What did not count is listed in `Effective.withheld`, unless another layer says the same.
"""

from __future__ import annotations

from .boundary import RESERVE
from .errors import PolicyError
from .rule import Rule, parse_rule
from .rules import Rules
from .units import parse_duration, parse_size
from .value import Value, lazy
from .written import Written, as_policy, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .policy import Policy
    from .rule import Use

BUILT_IN = "built-in"

DEFAULT_ENVIRONMENT = (
    # who and where
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "TZ", "LANG", "LANGUAGE", "LC_*"),
    # what the terminal can do, and what the user reads and writes with
    *("TERM", "COLORTERM", "TERM_PROGRAM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"),
    *("EDITOR", "VISUAL", "PAGER", "CI"),
    # where configuration and toolchains are
    *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR", "VOLTA_HOME", "RUSTUP_HOME", "GOROOT", "JAVA_HOME"),
    # which certificates to believe
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "PIP_CERT", "NIX_SSL_CERT_FILE"),
)
"""The variables that reach the worker when set. None of them holds a secret or names a daemon by its usual meaning."""


class Layer(Value):
    """A policy and where it was written. `base` is the folder its relative paths start from: that of the file, or the
    current one for flags; None leaves them to `resolve`, which takes the current one.
    """

    source: str
    says: Policy | Written
    trusted: bool = True
    base: str | None = None

    @property
    def policy(self) -> Policy:
        """What it says, as tables."""
        return as_policy(self.says)


class Entry(Value):
    """One value of one layer. `key` is dotted (`network.allow`, `env.set.CI`), `value` as written."""

    key: str
    value: str
    source: str
    base: str | None = None


class Effective(Value):
    """What is in force. `entries` are its values in the order of the keys, then of the layers; `withheld` what an
    untrusted layer would have widened. Relative paths in what is `written` have been joined to the base of their layer.
    """

    written: Written
    entries: tuple[Entry, ...] = ()
    withheld: tuple[Entry, ...] = ()

    @lazy
    def policy(self) -> Policy:
        """The same as tables."""
        return as_policy(self.written)

    def items(self, key: str) -> tuple[str, ...]:
        """What a list holds."""
        return self.written.lists.get(key, ())

    def value(self, key: str) -> Any:
        """The value of a key, as written; None when there is none."""
        return self.written.values.get(key)

    def of(self, key: str) -> list[Entry]:
        """The entries of one key."""
        return [entry for entry in self.entries if entry.key == key]

    def source(self, key: str) -> str:
        """The layer that set a key, the built-in one when none did."""
        return next((entry.source for entry in self.entries if entry.key == key), BUILT_IN)

    def rules(self) -> Rules:
        """The rules of the worker's network. Raises PolicyError."""
        budget = self.value("network.max-bytes-out")
        return Rules.build(
            self._parsed("network.allow", "allow"),
            self._parsed("network.deny", "deny"),
            self._parsed("network.private", "private"),
            sni=self.value("network.sni") or "match",
            max_bytes_out=None if budget is None else parse_size(budget),
        )

    def verify_rules(self) -> Rules:
        """The rules of the verification's network: what it may reach is listed for itself, what is denied holds too."""
        return Rules.build(
            self._parsed("verify.network", "allow"),
            self._parsed("network.deny", "deny"),
            self._parsed("network.private", "private"),
            sni=self.value("network.sni") or "match",
        )

    def _parsed(self, key: str, use: Use) -> list[Rule]:
        return [parse_rule(entry.value, source=entry.source, use=use) for entry in self.of(key)]


def built_in() -> Layer:
    """The defaults, as a layer: what `merge` starts from."""
    return Layer(
        BUILT_IN,
        Written(
            {"env.pass": DEFAULT_ENVIRONMENT},
            {"filesystem.read": "host", "filesystem.git": False, "network.sni": "match"},
        ),
    )


def merge(layers: Sequence[Layer]) -> Effective:
    """The layers as one policy, weakest first; the built-in defaults need not be among them. Raises PolicyError for a
    limit that cannot be compared.
    """
    merging = _Merging()
    for layer in (built_in(), *layers):
        merging.add(layer)
    return merging.finish()


class _Merging:
    """The state of one merge: lists as ordered sets of (identity -> entry), values as the entry that has them."""

    def __init__(self) -> None:
        self.lists: dict[str, dict[str, Entry]] = {key: {} for key in _LISTS}
        self.values: dict[str, tuple[object, Entry]] = {}
        self.withheld: list[tuple[str, Entry]] = []

    def add(self, layer: Layer) -> None:
        said = written(layer.says)
        for key, items in said.lists.items():
            for item in items:
                self._add_item(layer, key, item)
        for key, value in said.values.items():
            self._add_value(layer, key, value)

    def _add_item(self, layer: Layer, key: str, item: str) -> None:
        entry = Entry(key, item, layer.source, layer.base)
        identity = _identity(entry)
        if identity in self.lists[key]:
            return
        if layer.trusted or key in _NARROWING_LISTS:
            self.lists[key][identity] = entry
        else:
            self.withheld.append((identity, entry))

    def _add_value(self, layer: Layer, key: str, value: object) -> None:
        entry = Entry(key, _shown(value), layer.source, layer.base)
        held = self.values.get(key)
        if held is not None and held[0] == value:
            return
        if layer.trusted or _narrows(key, value, held[0] if held else None, layer.source):
            self.values[key] = (value, entry)
        else:
            self.withheld.append((entry.value, entry))

    def finish(self) -> Effective:
        entries = [entry for key in _LISTS for entry in self.lists[key].values()]
        entries += [self.values[key][1] for key in sorted(self.values)]
        withheld = [
            entry
            for identity, entry in self.withheld
            if identity not in self.lists.get(entry.key, {})
            and not (entry.key in self.values and self.values[entry.key][1].value == entry.value)
        ]
        return Effective(self._written(), tuple(entries), tuple(dict.fromkeys(withheld)))

    def _written(self) -> Written:
        return Written(
            {key: tuple([_joined(entry) for entry in items.values()]) for key, items in self.lists.items()},
            {key: value for key, (value, _) in self.values.items()},
        )


_PATHS = (
    *("filesystem.write", "filesystem.protect", "filesystem.hide", "filesystem.grant"),
    *("filesystem.devices", "filesystem.sockets"),
)
_NARROWING_LISTS = frozenset(("filesystem.protect", "filesystem.hide", "network.deny"))

_LISTS = (
    *_PATHS,
    "network.allow",
    "network.deny",
    "network.private",
    "env.pass",
    "worker.toolchains",
    "worker.setup",
    "setup.network",
    "setup.toolchains",
    "verify.network",
)

_NARROW_VALUE: Mapping[str, object] = {"filesystem.read": "minimal", "filesystem.git": False, "network.sni": "match"}

_MEASURES: Mapping[str, Callable[[str], float]] = {
    "limits.wall": parse_duration,
    "limits.memory": parse_size,
    "limits.file-size": parse_size,
    "limits.processes": int,
    "limits.disk-free": lambda text: -parse_size(text),  # the more is to be left, the less may be used
    "network.max-bytes-out": parse_size,
}

_BUILT_IN: Mapping[str, object] = {"limits.disk-free": f"{RESERVE}B"}


def _narrows(key: str, value: object, held: object | None, source: str) -> bool:
    """Does a value let less through than the one held, None being what is built in or, without that, the most a key
    can let through?
    """
    if key in _NARROW_VALUE:
        return value == _NARROW_VALUE[key]
    measure = _MEASURES.get(key)
    if measure is None:
        return False
    held = held or _BUILT_IN.get(key)
    try:
        return held is None or measure(str(value)) < measure(str(held))
    except PolicyError as error:
        raise error.at(source=source, key=key) from None


def _identity(entry: Entry) -> str:
    """What two entries of a list have in common when they say the same. Rules are compared as written: parsing them
    here and in `rules()` would double the cost of a long list, and the index drops duplicates anyway.
    """
    return _joined(entry).rstrip("/") or "/" if entry.key in _PATHS else entry.value


def _joined(entry: Entry) -> str:
    """The value, a relative path joined to the base of its layer."""
    value = entry.value
    if entry.key in _PATHS and entry.base and not value.startswith(("/", "~")):
        return entry.base.rstrip("/") + "/" + value.removeprefix("./")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int)) else " ".join(value)
