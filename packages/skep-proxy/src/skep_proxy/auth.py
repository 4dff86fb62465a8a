"""The token of a listener that more can connect to than should: on a host without network namespaces, its loopback.

    HTTP      Proxy-Authorization: Basic, user `skep`, the token for a password; 407 otherwise, for every request
    SOCKS5    user and password (RFC 1929), the same; no other method is accepted

It is compared in constant time, never passed on and never in an event.
"""

from __future__ import annotations

import binascii

USER = b"skep"

_SCHEME = b"basic "
_MAX = 1024
"""Bytes of credentials that are looked at."""


class Token:
    """Admits who knows it."""

    __slots__ = ("_same", "_secret")

    def __init__(self, token: str) -> None:
        """Raises ValueError for a token that the protocols cannot carry."""
        from hmac import compare_digest  # loads OpenSSL, which nobody else here needs

        self._same = compare_digest
        secret = token.encode()
        if not 16 <= len(secret) <= 255:
            raise ValueError("a token has 16 to 255 bytes")
        self._secret = USER + b":" + secret

    def __repr__(self) -> str:
        return "Token(...)"

    def admits_field(self, value: bytes | None) -> bool:
        """The value of Proxy-Authorization."""
        if value is None or len(value) > _MAX or value[: len(_SCHEME)].lower() != _SCHEME:
            return False
        try:
            return self._admits(binascii.a2b_base64(value[len(_SCHEME) :].strip(), strict_mode=True))
        except binascii.Error:
            return False

    def admits(self, user: bytes, password: bytes) -> bool:
        return self._admits(user + b":" + password)

    def _admits(self, shown: bytes) -> bool:
        return self._same(shown, self._secret)
