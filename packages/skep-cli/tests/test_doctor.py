"""`skep doctor` says what is true of a machine, and `--sockets` what of it a worker could speak to."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from skep_cli.doctor import command


@pytest.mark.sandbox
def test_a_healthy_machine_is_usable_and_each_layer_has_a_line() -> None:
    result = CliRunner().invoke(command, ["--json"])
    diagnosis = json.loads(result.stdout)
    assert result.exit_code == 0 and diagnosis["usable"] is True, result.output
    assert {"bwrap", "sandbox", "egress", "state", "git"} <= {check["id"] for check in diagnosis["checks"]}


def test_without_bwrap_it_is_not_usable_and_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2\nexit 1\n"
    )
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = CliRunner().invoke(command, ["--json"])
    diagnosis = json.loads(result.stdout)
    assert result.exit_code == 1 and diagnosis["usable"] is False
    [failure] = [check for check in diagnosis["checks"] if check["status"] == "fail"]
    assert failure["id"] == "user-namespaces" and "sysctl" in failure["fix"]
    assert "NOT usable" in CliRunner().invoke(command, []).output


def test_sockets_of_the_host_are_listed_with_what_masks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=".skep-test-", dir=Path.home()) as folder,
        socket.socket(socket.AF_UNIX) as daemon,
    ):
        path = os.path.realpath(folder) + "/daemon.sock"
        daemon.bind(path)
        daemon.listen()
        work = Path(folder) / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        found = {row["path"]: row for row in json.loads(CliRunner().invoke(command, ["--sockets", "--json"]).stdout)}
    assert found[path]["status"] == "masked" and "/dev/null" in found[path]["by"]
    assert not [row for row in found.values() if row["status"] == "REACHABLE"]
