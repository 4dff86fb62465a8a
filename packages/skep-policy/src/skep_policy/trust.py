"""Which project files the operator has looked at: pinned by the hash of their text, so that a change asks again.

The store is a value; reading and writing its file is the command line's.
"""

from __future__ import annotations

import msgspec

from .errors import PolicyError


class TrustStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Repository (absolute, links resolved) -> SHA-256 of the project file that was trusted there."""

    trusted: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    @classmethod
    def decode(cls, data: bytes, *, source: str | None = None) -> TrustStore:
        """The store of its JSON; nothing is trusted by an empty one. Raises PolicyError for anything else."""
        if not data:
            return cls()
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"not a trust store ({error}); remove it and trust again", source=source) from None

    def encode(self) -> bytes:
        """JSON, sorted, one line per repository."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"

    def is_trusted(self, repo: str, text: bytes) -> bool:
        """True when exactly this text was trusted for this repository."""
        return self.trusted.get(repo) == fingerprint(text)

    def trusting(self, repo: str, text: bytes) -> TrustStore:
        """The store that trusts this text for this repository, whatever it trusted there before."""
        return TrustStore({**self.trusted, repo: fingerprint(text)})

    def forgetting(self, repo: str) -> TrustStore:
        """The store without this repository."""
        return TrustStore({known: digest for known, digest in self.trusted.items() if known != repo})


def fingerprint(text: bytes) -> str:
    """SHA-256 in hex."""
    import hashlib  # links a crypto library; only a repository with a project file pays for it

    return hashlib.sha256(text).hexdigest()
