"""What was trusted is exactly one text of one repository."""

from __future__ import annotations

import pytest
from skep_policy import PolicyError, TrustStore


def test_only_the_text_that_was_trusted_is_trusted_and_only_there() -> None:
    store = TrustStore().trusting("/repo", b"a = 1")
    assert store.is_trusted("/repo", b"a = 1")
    assert not store.is_trusted("/repo", b"a = 1\n")
    assert not store.is_trusted("/other", b"a = 1")
    assert not store.trusting("/repo", b"b = 2").is_trusted("/repo", b"a = 1")
    assert not store.forgetting("/repo").is_trusted("/repo", b"a = 1")
    assert not TrustStore().is_trusted("/repo", b"")


def test_survives_being_written_down() -> None:
    store = TrustStore().trusting("/b", b"x").trusting("/a\nüñ", b"y")
    assert TrustStore.decode(store.encode()) == store
    assert TrustStore.decode(b"") == TrustStore()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"trusted": 1}', b'{"trusted": {}, "x": 1}', b"\xff", b"null"])
def test_a_damaged_store_trusts_nothing_and_says_so(data: bytes) -> None:
    with pytest.raises(PolicyError, match="trust again"):
        TrustStore.decode(data, source="trust.json")
