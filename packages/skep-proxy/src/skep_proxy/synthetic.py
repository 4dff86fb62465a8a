"""Addresses that stand for names inside a sandbox, so that a connection says which name it was made for. Pure.

198.18.0.0/15 (RFC 2544, never routed) and fd5b:6b65:7000::/64 (a ULA). A name has the same number in both families
for as long as its table lives.
"""

from __future__ import annotations

from skep_policy.hosts import format_ipv4, parse_ipv4

CAPACITY = 16384
"""Names of one sandbox. A worker can ask for any name below an allowed wildcard; this bounds what that costs."""

_V4 = 198 << 24 | 18 << 16
_V6 = "fd5b:6b65:7000::"


class Names:
    """Both directions of the table."""

    __slots__ = ("_by_name", "_names")

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._names: list[str] = []

    def addresses(self, name: str) -> tuple[str, str] | None:
        """(IPv4, IPv6) of a name, new or known; None when the table is full."""
        number = self._by_name.get(name)
        if number is None:
            if len(self._names) >= CAPACITY:
                return None
            self._names.append(name)
            number = self._by_name[name] = len(self._names)
        return format_ipv4(_V4 + number), f"{_V6}{number:x}"

    def name_of(self, address: str) -> str | None:
        """The name an address was given to."""
        if address.startswith(_V6):
            text = address[len(_V6) :]
            number = int(text, 16) if text and ":" not in text else 0
        else:
            number = (parse_ipv4(address) or 0) - _V4
        return self._names[number - 1] if 0 < number <= len(self._names) else None
