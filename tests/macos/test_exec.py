"""`skep exec` the macOS way: which backend, what the worker gets, what is refused, what is told."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.escapes.worker import eventually, processes_with

from .stage import Machine

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one: pytest -m macos")


def test_the_command_runs_under_a_profile_and_the_report_says_what_held(machine: Machine) -> None:
    done, report = machine.exec("pwd; cat; exit 7")
    assert done.returncode == report["exit_code"] == 7, done.stderr
    assert done.stdout.split() == [str(machine.work)]
    assert report["layers"]["mach"] is True and report["layers"]["proxy"] is True
    assert report["attestation"]["writes"] is True and report["attestation"]["proxy"] is True


def test_a_boundary_that_does_not_hold_never_starts_the_worker(machine: Machine) -> None:
    done, _ = machine.exec("touch started", mode="idle")
    assert done.returncode == 125 and "not in force" in done.stderr and done.stderr.count("\n") == 1
    assert not (machine.work / "started").exists()
    assert machine.exec("touch started")[0].returncode == 0 and (machine.work / "started").exists()


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ({"mode": "missing"}, "is missing"),
        ({"mode": "nested"}, "already inside a sandbox"),
        ({"mode": "unreadable"}, "does not take the profile"),
        ({"uid": 0}, "ordinary user"),
        ({"platform": "freebsd14"}, "freebsd14"),
        ({"platform": "win32"}, "win32"),
    ],
)
def test_what_cannot_be_held_is_125_with_one_line(machine: Machine, how: dict[str, Any], word: str) -> None:
    done, _ = machine.exec("touch started", **how)
    assert done.returncode == 125 and word in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (machine.work / "started").exists()


@pytest.mark.parametrize(
    ("flags", "key"), [(("--memory", "1GiB"), "limits.memory"), (("--env", "DYLD_INSERT_LIBRARIES=/x"), "DYLD_")]
)
def test_a_key_that_macos_cannot_enforce_is_refused_by_name(machine: Machine, flags: tuple[str, ...], key: str) -> None:
    done, _ = machine.exec("touch started", *flags)
    assert done.returncode == 125 and key in done.stderr
    assert not (machine.work / "started").exists()


def test_temporary_files_have_a_folder_of_the_runs_own_that_is_gone_after(machine: Machine) -> None:
    closed = 'cd "$TMPDIR" && mkdir closed && touch closed/x && chmod 0 closed'
    script = f"echo $TMPDIR; ls -ld $TMPDIR | cut -c1-10; {closed}"
    done, _ = machine.exec(script)
    assert done.returncode == 0, done.stderr
    folder, mode = done.stdout.split()
    assert Path(folder).is_relative_to(machine.temporary) and mode == "drwx------"
    assert list(machine.temporary.iterdir()) == []


def test_the_token_is_in_the_workers_environment_and_in_no_command_line(machine: Machine) -> None:
    script = "echo $HTTPS_PROXY; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
    done, _ = machine.exec(script, "--allow", "example.com")
    url, _, lines = done.stdout.partition("\n")
    token = url.partition("skep:")[2].partition("@")[0]
    assert len(token) >= 24 and url.endswith(f"@127.0.0.1:{url.rpartition(':')[2]}")
    assert "sandbox-exec" in lines and token not in lines


def test_only_who_has_the_token_is_served_and_a_denial_is_told_with_its_flag(machine: Machine) -> None:
    with_token = "curl -s -o /dev/null -w '%{http_connect} ' https://denied.example"
    without = 'curl -s -o /dev/null -w "%{http_connect} " -x "127.0.0.1:${HTTPS_PROXY##*:}" https://other.example'
    done, report = machine.exec(f"{with_token}; {without}", "--allow", "example.com")
    assert done.stdout.split() == ["403", "407"], done
    assert [denied["host"] for denied in report["egress"]["denied"]] == ["denied.example"]
    assert "--allow denied.example" in done.stderr


def test_what_ssh_is_given_leads_to_an_allowed_host_and_to_no_other(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"said: " + connection.recv(100))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        through = f'echo hello | $(echo "$SKEP_PROXY_COMMAND" | sed "s/%h/127.0.0.1/; s/%p/{port}/")'
        denied = '$(echo "$SKEP_PROXY_COMMAND" | sed "s/%h/denied.example/; s/%p/22/") < /dev/null'
        done, report = machine.exec(f"{through}; {denied}", "--allow", f"127.0.0.1:{port}")
        thread.join(60)
    assert done.stdout == "said: hello\n" and done.returncode == 1, done
    assert "denied.example" in done.stderr
    assert [(one["host"], one["port"]) for one in report["egress"]["allowed"]] == [("127.0.0.1", port)]
    assert [(one["host"], one["port"]) for one in report["egress"]["denied"]] == [("denied.example", 22)]


def test_nobody_else_listens_at_the_proxys_port_of_the_other_loopback_address(machine: Machine) -> None:
    script = "curl -s -o /dev/null -w '%{http_code}' \"http://[::1]:${HTTPS_PROXY##*:}/\""
    done, _ = machine.exec(script)
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    assert done.stdout == "407", done


def test_with_nothing_allowed_a_denial_is_still_told_by_name(machine: Machine) -> None:
    done, report = machine.exec("curl -s https://denied.example")
    assert report["layers"]["network"] is True
    assert "--allow denied.example" in done.stderr


def test_what_the_unified_log_says_was_denied_is_a_finding_of_this_run_alone(machine: Machine) -> None:
    machine.speaking_log()
    done, report = machine.exec("exit 1")
    assert report["layers"]["denials"] is True
    assert [(found["kind"], found["path"]) for found in report["findings"]] == [
        ("denied", "/Users/u/x"),
        ("denied", "com.apple.coreservices.launchservicesd"),
    ]
    assert "--write /Users/u/x would allow it" in done.stderr and "cannot be granted" in done.stderr
    assert eventually(lambda: not processes_with(str(machine.log)))


def test_the_workers_output_to_a_file_passes_no_descriptor_of_the_file(machine: Machine) -> None:
    out, given = machine.base / "out", machine.base / "given"
    given.write_text("words\n")
    script = "cat; for n in 0 1 2; do stat -L -c %F /proc/self/fd/$n; done"
    with given.open("rb") as stdin, out.open("wb") as stdout:
        done = subprocess.run(
            machine.argv("exec", "--", "sh", "-c", script),
            cwd=machine.work,
            env=machine.environ(),
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
            timeout=60,
        )
    assert done.returncode == 0
    assert out.read_text().splitlines() == ["words", "fifo", "fifo", "fifo"]


def test_a_pipe_is_the_commands_own_standard_input(machine: Machine) -> None:
    done = subprocess.run(
        machine.argv("exec", "--", "sh", "-c", "cat; cat >&2"),
        cwd=machine.work,
        env=machine.environ(),
        input="words\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "words\n", "")


def test_a_process_that_outran_its_end_does_not_hold_the_command_up(machine: Machine) -> None:
    word = f"79{os.getpid()}"
    out = machine.base / "out"
    try:
        with out.open("wb") as stdout:
            done = subprocess.run(
                machine.argv("exec", "--", "sh", "-c", f"setsid sleep {word} & echo done"),
                cwd=machine.work,
                env=machine.environ(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                timeout=60,
            )
        assert done.returncode == 0 and out.read_text() == "done\n"
    finally:
        for pid in processes_with(word):  # the stand-in knows no sandbox by which the guardian would find it
            os.kill(pid, signal.SIGKILL)


def test_the_wall_limit_is_124(machine: Machine) -> None:
    done, _ = machine.exec("sleep 60", "--wall", "1s")
    assert done.returncode == 124 and "wall limit" in done.stderr


def test_signals_are_forwarded_and_the_status_is_the_commands(machine: Machine) -> None:
    ready = machine.work / "ready"
    script = "trap 'exit 9' TERM; touch ready; while :; do sleep 0.05; done"
    skep = subprocess.Popen(
        machine.argv("exec", "--", "sh", "-c", script),
        cwd=machine.work,
        env=machine.environ(),
        stdin=subprocess.DEVNULL,
    )
    try:
        assert eventually(ready.exists)
        skep.send_signal(signal.SIGTERM)
        assert skep.wait(60) == 9
    finally:
        skep.kill()
        skep.wait()


def test_when_skep_is_killed_nothing_is_left(machine: Machine) -> None:
    machine.speaking_log()
    ready, word = machine.work / "ready", f"77{os.getpid()}"
    skep = subprocess.Popen(
        machine.argv("exec", "--", "sh", "-c", f"touch ready; sleep {word}"),
        cwd=machine.work,
        env=machine.environ(),
        stdin=subprocess.DEVNULL,
    )
    try:
        assert eventually(ready.exists) and list(machine.temporary.iterdir())
    finally:
        skep.kill()
        skep.wait()
    assert eventually(lambda: not processes_with(word) and not processes_with(machine.log))
    assert eventually(lambda: list(machine.temporary.iterdir()) == [])


@pytest.mark.skipif(shutil.which("git") != "/usr/bin/git", reason="git is not where macOS has its placeholder")
def test_doctor_knows_the_placeholder_of_git_from_git(machine: Machine) -> None:
    assert "ok    git: /usr/bin/git" in machine.skep("doctor").stdout
    machine.xcode_select = "/bin/false"
    done = machine.skep("doctor")
    assert done.returncode == 0 and "placeholder" in done.stdout and "fix: xcode-select --install" in done.stdout


def test_another_platform_is_said_to_have_no_boundary_by_doctor_too(machine: Machine) -> None:
    done = machine.skep("doctor", platform="freebsd14")
    assert done.returncode == 1 and "no boundary can be applied on freebsd14" in done.stdout and "fix:" in done.stdout


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"mode": "missing"}, "sandbox-exec: "),
        ({"mode": "nested"}, "nested: already inside a sandbox"),
        ({"mode": "unreadable"}, "profile: macOS does not take the profile"),
        ({"mode": "idle"}, "attestation: the sandbox does not hold as it was set up"),
        ({"uid": 0}, "user: a profile does not hold a worker that is root"),
    ],
)
def test_doctor_has_a_line_and_a_fix_for_each_way_to_fail(machine: Machine, how: dict[str, Any], line: str) -> None:
    done = machine.skep("doctor", **how)
    assert done.returncode == 1 and f"FAIL  {line}" in done.stdout, done.stdout
    assert "NOT usable" in done.stdout
    healthy = machine.skep("doctor")
    assert healthy.returncode == 0 and "ok    launch" in healthy.stdout, healthy.stdout
