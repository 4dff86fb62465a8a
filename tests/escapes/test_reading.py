"""The worker reads no secret it was not handed."""

from __future__ import annotations

import os

import pytest

from .worker import Worker

pytestmark = pytest.mark.sandbox


@pytest.mark.guarantee("read-env")
def test_the_environment_is_an_allowlist(worker: Worker) -> None:
    environ = {"SECRET_TOKEN": "hush"}
    assert worker.run("printenv", "SECRET_TOKEN", environ=environ).stdout == ""
    assert worker.run("printenv", "SECRET_TOKEN", flags=("--env", "SECRET_TOKEN"), environ=environ).stdout == "hush\n"
    assert worker.run("printenv", "SECRET_TOKEN", flags=("--env", "SECRET_TOKEN=other")).stdout == "other\n"


@pytest.mark.guarantee("read-env")
def test_no_process_in_sight_has_the_callers_environment(worker: Worker) -> None:
    done = worker.run("sh", "-c", "cat /proc/[0-9]*/environ", environ={"SECRET_TOKEN": "hush"})
    assert "PATH=" in done.stdout and "hush" not in done.stdout


@pytest.mark.guarantee("read-hidden")
@pytest.mark.parametrize("store", [".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml"])
def test_a_credential_store_is_hidden_unless_granted(worker: Worker, store: str) -> None:
    secret = worker.home / store
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("hush")
    granted = worker.home / (store if store == ".netrc" else os.path.dirname(store))
    assert worker.attempt(f"open({str(secret)!r}).read()") in ("ENOENT", "EACCES")
    granting = ("--grant", str(granted), *(("--write", str(granted)) if worker.unseen else ()))
    assert worker.attempt(f"open({str(secret)!r}).read()", *granting) == "ok"


@pytest.mark.guarantee("read-hidden")
def test_a_hidden_path_takes_nothing_either(worker: Worker) -> None:
    hidden = worker.outside / "hidden"
    hidden.mkdir()
    body = f"open({str(hidden / 'decoy')!r}, 'w').close()"
    root = ("--write", str(worker.outside))
    assert worker.attempt(body, *root, "--hide", str(hidden)) in ("ENOENT", "EACCES", "EROFS")
    assert list(hidden.iterdir()) == []
    assert worker.attempt(body, *root) == "ok"


@pytest.mark.guarantee("read-hidden")
def test_a_wide_grant_does_not_reopen_what_is_hidden_by_name(worker: Worker) -> None:
    secret = worker.outside / "secret"
    secret.write_text("hush")
    read = f"open({str(secret)!r}).read()"
    wide = ("--grant", str(worker.outside), "--write", str(worker.outside))
    assert worker.attempt(read, *wide, "--hide", str(secret)) in ("ENOENT", "EACCES")
    assert worker.attempt(read, *wide) == "ok"
