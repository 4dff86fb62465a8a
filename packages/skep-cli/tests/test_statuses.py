"""The same mistake has the same exit status in every command, and one line that says what to do about it.

2 when the words have to change, 125 when the words are right and this machine lacks what they name (`refusals`).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from skep_cli.cli import cli

from .stage import skep

COMMANDS = {
    "exec": ("exec", "{}", "--", "touch", "ran"),
    "run": ("run", "{home}/project", "task", "--worker", "touch {home}/ran", "{}"),
    "policy show": ("policy", "show", "{}"),
    "policy check": ("policy", "check", "{}"),
    "policy explain": ("policy", "explain", "./file", "{}"),
}
FILES = {
    "bad.toml": "x =",
    "key.toml": "[network]\nalow = []\n",
    "tools.toml": '[worker]\ntoolchains = ["pyton"]\n',
    "folder.toml": '[filesystem]\nwrite = ["missing"]\n',
}
MISTAKES = [
    # what is typed, the status, what the one line says
    (("--preset", "codx"), 2, "--preset|preset", "did you mean codex? known are aider"),
    (("--toolchain", "pyton"), 2, "--toolchain: no toolchain 'pyton'", "did you mean python?"),
    (("--policy", "absent.toml"), 2, "absent.toml: cannot be read", "No such file"),
    (("--policy", "bad.toml"), 2, "bad.toml:1: not TOML", ""),
    (("--policy", "key.toml"), 2, "key.toml:2: network.alow: unknown key", "allow"),
    (("--policy", "tools.toml"), 2, "tools.toml:2: worker.toolchains: no toolchain", "did you mean python?"),
    (("--wall", "soon"), 2, "--wall: not a duration", 'like "90s"'),
    (("--memory", "lots"), 2, "--memory: not a size", 'like "512MiB"'),
    (("--processes", "0"), 2, "--processes: must be at least 1", ""),
    (("--processes", "many"), 2, "'--processes': 'many'", "--help"),
    (("--allow", "*foo.com"), 2, "--allow: a wildcard", r'write "*.foo.com"'),
    (("--deny", "http://x.example"), 2, "--deny: a rule is a host", 'write "x.example"'),
    (("--env", "1X=2"), 2, "--env: not the name", "use letters"),
    (("--device", "nothing"), 2, "--device: not a device", "/dev/kvm"),
    (("--alow", "x"), 2, "no such option --alow; did you mean --allow", "--help"),
    (("--allow", "--"), 2, "--allow needs a DOMAIN", "before the --"),
    (("--wall", "--"), 2, "--wall needs a TIME", "before the --"),
    (("--write", "missing"), 125, "--write: ", "mkdir -p"),
    (("--policy", "folder.toml"), 125, "folder.toml: filesystem.write: ", "mkdir -p"),
    (("--write", "/proc"), 125, "/proc cannot be writable", "name a folder"),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("typed", "status", "what", "fix"), MISTAKES, ids=[" ".join(words) for words, *_ in MISTAKES])
def test_a_mistake_has_its_status_and_its_line_in_every_command(
    state: Path, command: str, typed: tuple[str, ...], status: int, what: str, fix: str
) -> None:
    home = state / "home"
    (home / "project").mkdir(parents=True)
    for name, text in FILES.items():
        (home / name).write_text(text)
    words: list[str] = []
    for word in COMMANDS[command]:
        words += typed if word == "{}" else [word.replace("{home}", str(home))]
    done = skep(state, *words)
    lines = done.stderr.splitlines()
    assert done.returncode == status and done.stdout == "", (done.stdout, done.stderr)
    assert len(lines) == 1 and lines[0].startswith("skep: ") and "Traceback" not in lines[0], done.stderr
    assert any(part in lines[0] for part in what.split("|")) and fix in lines[0], done.stderr
    assert "command line" not in lines[0] and not re.search(r"Errno|\[\d+\]", lines[0])
    assert not (home / "ran").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("workers", "codx"), "did you mean codex?"),
        (("workers", "--jsn"), "did you mean --json?"),
        (("doctor", "--jsn"), "did you mean --json?"),
        (("doctor", "everything"), "unexpected extra argument"),
        (("run", ".", "t", "--worker", "true", "--setup-toolchain", "pyton"), "did you mean python?"),
        (("run", ".", "t", "--worker", "true", "--setup-toolchain", "python"), "add --setup CMD"),
        (("run", "nowhere", "t", "--worker", "true"), "no such folder"),
        (("run", ".", "t", "--worker", "true", "--execution-mode", "sandbx"), "'sandbox', 'workspace'"),
        (("run", ".", "t", "--worker", "true", "--workspace", "coppy"), "'overlay', 'copy'"),
        (("run", ".", "t", "--worker", "true", "--verify", "'"), "quote it as for a shell"),
        (("policy", "check", "absent.toml"), "No such file"),
        (("policy", "shw"), "did you mean"),
        (("policy", "explain", "https://example.com/"), "example.com:443"),
        (("policy", "explain", ""), "name a host or a path"),
        (("trust", "nowhere"), "does not exist"),
        (("review", "nothing"), "`skep run REPO TASK` makes one"),
        (("approve", "nothing"), "`skep run REPO TASK` makes one"),
        (("deny", "nothing"), "`skep run REPO TASK` makes one"),
        (("audit", "verify", "nothing"), "`skep run REPO TASK` makes one"),
        (("audit", "verfy"), "did you mean"),
        (("exec",), "COMMAND"),
        (("exec", "--alow", "x", "true"), "write -- before the command"),
        (("exce",), "did you mean exec?"),
    ],
    ids=str,
)
def test_an_operand_or_a_name_that_is_none_is_a_usage_error_of_one_line(
    state: Path, words: tuple[str, ...], says: str
) -> None:
    done = skep(state, *words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and says in done.stderr, done.stderr
    assert done.stderr.startswith("skep: ") and done.stdout == ""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[" ".join((*path, name))] = command
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
    return found


@pytest.mark.parametrize("name", sorted(commands(cli)))
def test_the_help_of_a_command_shows_examples_that_it_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("lib", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = commands(cli)[name]
    told = (command.help or "").partition("Examples:\n")[2].strip()
    assert told, f"`skep {name} --help` has no examples"
    for line in told.splitlines():
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "skep", line
        at: click.Command = cli
        rest = words[1:]
        while isinstance(at, click.Group):
            found = at.get_command(click.Context(at), rest[0])
            assert found is not None, line
            at, rest = found, rest[1:]
        at.make_context(words[1], rest)  # which fails for a flag it does not take


@pytest.mark.parametrize("command", ["exec", "run"])
def test_a_report_that_cannot_be_written_names_its_flag_and_what_to_do(state: Path, command: str) -> None:
    (state / "home/project").mkdir(parents=True)
    words = ("exec", "{}", "--", "true") if command == "exec" else ("run", "project", "t", "--worker", "true", "{}")
    flag = "--report=none/report.json"
    done = skep(state, *(word.replace("{}", flag) for word in words))
    assert done.returncode == 125
    assert (
        done.stderr == "skep: --report none/report.json: No such file or directory: name a file that can be written\n"
    )


def test_a_configuration_that_may_not_be_looked_at_is_refused_and_not_left_out(state: Path) -> None:
    (state / "loop").symlink_to("loop")
    done = skep(state, "exec", "--", "true", env={"XDG_CONFIG_HOME": str(state / "loop")})
    assert done.returncode == 2 and "skep/config.toml: cannot be read" in done.stderr
    (state / "empty").mkdir()
    assert skep(state, "exec", "--", "true", env={"XDG_CONFIG_HOME": str(state / "empty")}).returncode == 0


@pytest.mark.sandbox
def test_a_path_that_was_typed_and_leads_nowhere_is_told(state: Path) -> None:
    (state / "home").mkdir(exist_ok=True)
    (state / "home/there").touch()
    for flag in ("--hide", "--protect", "--grant"):
        done = skep(
            state,
            "exec",
            flag,
            "their",
            flag,
            "there",
            *(("--hide", "*.pem") if flag == "--hide" else ()),
            "--",
            "true",
        )
        assert done.returncode == 0
        assert done.stderr == f"skep: {flag} their: nothing is there now; is it spelt right?\n"


def test_the_help_of_run_and_exec_fits_a_page_and_has_every_flag_once() -> None:
    for command in ("run", "exec"):
        context = click.Context(cli, info_name="skep", terminal_width=80)
        found = cli.get_command(context, command)
        assert found is not None
        sub = click.Context(found, parent=context, info_name=command, terminal_width=80)
        lines = found.get_help(sub).splitlines()
        assert len(lines) <= 60
        for param in found.get_params(sub):
            if isinstance(param, click.Option):
                assert sum(line.startswith(f"  {param.opts[-1]} ") for line in lines) + ("-h" in param.opts) == 1
