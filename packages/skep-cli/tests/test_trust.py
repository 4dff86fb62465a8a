"""`skep trust` where something is in the way."""

from __future__ import annotations

from pathlib import Path

from .stage import skep


def test_a_trust_store_that_is_none_is_one_line(state: Path, tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text('network.allow = ["a.example.com"]\n')
    store = state / "skep/trusted.json"
    store.parent.mkdir()
    store.write_text("garbage")
    done = skep(state, "trust", "--yes", str(tmp_path))
    assert done.returncode == 125 and "Traceback" not in done.stderr
    assert f"{store}: not a trust store" in done.stderr
    store.unlink()
    assert skep(state, "trust", "--yes", str(tmp_path)).returncode == 0
