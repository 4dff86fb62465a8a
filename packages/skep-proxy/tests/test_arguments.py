"""What is wrong with the command line or the file is one line that names the flag or the key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from skep_proxy.__main__ import main

MISTAKES = [
    (
        ("--allow", "*foo.com"),
        "--allow: a wildcard stands for whole labels, first in the name: '*foo.com'; write \"*.foo",
    ),
    (("--deny", "x/"), "--deny: a rule has no path: 'x/'; write \"x\""),
    (("--private", "1"), "--private: a host that ends in a number"),
    (("--max-bytes-out", "x"), "--max-bytes-out: not a size: 'x'"),
    (("--listen", "foo"), "--listen: not an address to listen on: 'foo'"),
    (("--metrics", "x"), "--metrics: not an address to listen on: 'x'"),
    (("--unix", "/tmp/x", "--mode", "9"), "--mode: not file permissions: '9'"),
    (("--drain", "x"), "--drain: not a duration: 'x'"),
    (("--workers", "0"), "--workers: must be at least 1, not 0"),
    (("--workers", "x"), "argument --workers: invalid int value: 'x'; see `skep-proxy serve --help`"),
    (("--sni", "of"), "argument --sni: invalid choice: 'of'"),
    (("--upstream", "ftp://x"), "--upstream: ftp://"),
    (("--alow", "x"), "unrecognized arguments: --alow x; see `skep-proxy --help`"),
    (("--config", "absent.toml"), "absent.toml: cannot be read: No such file or directory"),
    (("--config", "rule.toml"), "rule.toml: listener[0].deny: a rule is a host, not a URL"),
    (("--config", "size.toml"), "size.toml: listener[0].max-bytes-out: not a size"),
    (("--config", "key.toml"), 'key.toml: listener[0].allw: unknown key; did you mean "allow"?'),
    (("--config", "top.toml"), "top.toml: zebra: unknown key; known are listener, limits"),
    (("--config", "kind.toml"), "kind.toml: limits.connections: Expected int, got str"),
    (("--config", "empty.toml"), "empty.toml: nothing to listen on: add a [[listener]] table"),
]


@pytest.mark.parametrize(("typed", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_a_usage_error_of_one_line_that_names_it(
    typed: tuple[str, ...],
    says: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    listener = '[[listener]]\ntcp = "127.0.0.1:0"\n'
    Path("rule.toml").write_text(f'{listener}deny = ["http://x"]\n')
    Path("size.toml").write_text(f'{listener}max-bytes-out = "x"\n')
    Path("empty.toml").write_text("")
    Path("key.toml").write_text(f"{listener}allw = []\n")
    Path("top.toml").write_text("zebra = 1\n")
    Path("kind.toml").write_text('[limits]\nconnections = "x"\n')
    try:
        status: object = main(["serve", *typed])
    except SystemExit as end:  # argparse
        status = end.code
    said = capfd.readouterr()
    assert status == 2 and said.out == ""
    assert said.err.startswith(f"skep-proxy: {says}") and said.err.count("\n") == 1, said.err


def test_a_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    log = tmp_path / "none/events.jsonl"
    argv = [sys.executable, "-m", "skep_proxy", "serve", "--listen", "127.0.0.1:0", "--json-log", str(log)]
    done = subprocess.run(argv, capture_output=True, text=True)  # it blocks signals, and raises its limits
    assert done.returncode == 1 and done.stderr.endswith(f"skep-proxy: {log}: No such file or directory\n")


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--unix", "file"), "cannot listen on file: Address already in use; it is no socket"),
        (("--unix", "left"), "cannot listen on left: Address already in use; `rm left` if no proxy is behind it"),
        (("--unix", "absent/x"), "cannot listen on absent/x: No such file or directory; make its folder first"),
        (("--listen", "192.0.2.1:0"), "Cannot assign requested address; it is no address of this machine"),
        (("--unix", "x", "--metrics", "192.0.2.1:0"), "cannot listen on 192.0.2.1:0: Cannot assign"),
    ],
)
def test_a_place_that_cannot_be_listened_on_is_told_with_what_helps(
    typed: tuple[str, ...], says: str, workers: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code = "import socket; socket.socket(socket.AF_UNIX).bind('left')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    words = [sys.executable, "-m", "skep_proxy", "serve", "--allow", "x.example", *typed, "--workers", workers]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
