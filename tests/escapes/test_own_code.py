"""What the host will run by itself after the worker: skep's own code, and the folders programs are looked for in."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from skep_policy.aftermath import NEEDED

from .worker import Worker, attempt_code, eventually

pytestmark = [pytest.mark.sandbox, pytest.mark.guarantee("write-protected")]

PACKAGES = ("skep_bwrap", "skep_cli", "skep_netshim", "skep_policy", "skep_proxy", "skep_seatbelt")


def folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def attempt(worker: Worker, python: Path, environ: Mapping[str, str], body: str, *flags: str) -> str:
    """The outcome of `body` inside, by a skep that this Python finds in this environment."""
    command = [str(python), "-m", "skep_cli", "exec", *flags, "--", "python3", "-c", attempt_code(body)]
    done = subprocess.run(
        command, cwd=worker.workspace, env=worker.environ(environ), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def planted(worker: Worker, file: Path) -> str:
    return f"open({str(file)!r}, 'w').close()"


def test_a_virtual_environment_in_the_workspace_that_holds_skep_is_read_only(worker: Worker) -> None:
    environment = worker.workspace / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    there = dict.fromkeys(str(folder_of(package).parent) for package in (*PACKAGES, "msgspec"))
    (packages / "skep.pth").write_text("".join(f"{folder}\n" for folder in there))
    python = environment / "bin/python"
    for file in (packages / "evil.pth", packages / "skep.pth", environment / "pyvenv.cfg", environment / "bin/new"):
        assert attempt(worker, python, {}, planted(worker, file)) == "EROFS"
    assert attempt(worker, python, {}, "os.rename('.venv', 'other')") == "EBUSY"
    assert attempt(worker, python, {}, "os.mkdir('.venv2')") == "ok"
    assert worker.attempt(planted(worker, packages / "evil.pth")) == "ok"  # by a skep that is elsewhere


def test_bytecode_that_skep_keeps_of_itself_is_no_finding_and_what_the_worker_plants_beside_it_is(
    worker: Worker, tmp_path: Path
) -> None:
    source, report = worker.workspace / "src", tmp_path / "report.json"
    for package in PACKAGES:
        shutil.copytree(folder_of(package), source / package, ignore=shutil.ignore_patterns("__pycache__"))
    environ = worker.environ({"PYTHONPATH": str(source)})
    environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def found(*command: str) -> dict[str, str]:
        argv = [sys.executable, "-m", "skep_cli", "exec", "--report", str(report), "--", *command]
        done = subprocess.run(
            argv, cwd=worker.workspace, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        return {finding["path"]: finding["kind"] for finding in json.loads(report.read_text())["findings"]}

    assert found("true") == {}
    assert list(source.glob("*/__pycache__")), "it was kept there"
    planted = found("sh", "-c", "echo > src/click.py; mkdir src/rich; echo > src/rich/__init__.py; echo > src/mine.py")
    assert planted == {f"{source}/click.py": "appeared", f"{source}/rich": "appeared"}


def test_an_editable_installation_in_the_workspace_is_read_only(worker: Worker) -> None:
    for package in PACKAGES:
        shutil.copytree(folder_of(package), worker.workspace / "src" / package)
    environ = {"PYTHONPATH": str(worker.workspace / "src")}
    python = Path(sys.executable)
    for package in PACKAGES:  # those that this launch has not imported too
        file = worker.workspace / "src" / package / "__init__.py"
        assert attempt(worker, python, environ, planted(worker, file)) == "EROFS"
        assert file.stat().st_size == (folder_of(package) / "__init__.py").stat().st_size
    assert attempt(worker, python, environ, "os.rename('src', 'other')") == "EBUSY"
    assert attempt(worker, python, environ, "open('src/own.py', 'w').close()") == "ok"
    assert worker.attempt("open('src/skep_proxy/__init__.py', 'w').close()") == "ok"


def test_bytecode_that_is_kept_in_the_workspace_is_read_only(worker: Worker) -> None:
    """The next launch would run it on the host, and the shim's with every privilege a sandbox has."""
    environ = {"PYTHONPYCACHEPREFIX": str(worker.workspace / "bytecode")}
    python = Path(sys.executable)
    assert attempt(worker, python, environ, "os.mkdir('fine')") == "ok"  # and there is bytecode now
    body = "import glob; open(glob.glob('bytecode/**/*.pyc', recursive=True)[0], 'a').close()"
    assert attempt(worker, python, environ, body) == "EROFS"
    assert worker.attempt(body) == "ok"


@pytest.mark.parametrize("folder", [".local/bin", ".cargo/bin", "tools/bin"])
def test_a_folder_on_path_is_read_only_though_what_is_above_it_was_opened(worker: Worker, folder: str) -> None:
    programs = worker.home / folder
    programs.mkdir(parents=True)
    environ = {"PATH": f"{programs}:{worker.environ()['PATH']}"}
    above = str(worker.home / folder.partition("/")[0])
    body = planted(worker, programs / "git")
    python = Path(sys.executable)
    assert attempt(worker, python, environ, body, "--write", above) == "EROFS"
    assert os.listdir(programs) == []
    assert attempt(worker, python, environ, body, "--write", above, "--grant", str(programs)) == "ok"


def test_what_python_of_the_host_runs_at_every_start_is_read_only(worker: Worker) -> None:
    packages = worker.home / ".local/lib/python3/site-packages"
    packages.mkdir(parents=True)
    body = planted(worker, packages / "evil.pth")
    assert worker.attempt(body, "--write", str(worker.home / ".local")) == "EROFS"
    grant = ("--grant", str(worker.home / ".local/lib"))
    assert worker.attempt(body, "--write", str(worker.home / ".local"), *grant) == "ok"


def test_a_program_put_in_front_of_one_of_the_hosts_is_told_of(worker: Worker) -> None:
    programs = worker.workspace / ".venv/bin"
    programs.mkdir(parents=True)
    environ = {"PATH": f"{programs}:{worker.environ()['PATH']}"}
    done = worker.run("touch", str(programs / "git"), str(programs / "mine"), environ=environ)
    assert done.returncode == 0 and f"{programs}/git: appeared: it stands in front of" in done.stderr
    assert f"{programs}/mine" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")
def test_what_is_protected_is_so_at_another_mount_of_the_same_folder(worker: Worker) -> None:
    hooks = worker.workspace / "lib/.git/hooks"
    for folder in (hooks, hooks.parent / "objects", hooks.parent / "refs", worker.outside / "alias"):
        folder.mkdir(parents=True)
    (hooks.parent / "HEAD").write_text("ref: refs/heads/main\n")
    alias = worker.outside / "alias"
    body = f"open({str(alias / 'lib/.git/hooks/post-checkout')!r}, 'w').close()"
    skep = [*worker.argv(flags=("--write", str(alias))), "python3", "-c", attempt_code(body)]
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    for command, outcome in ((skep, "EROFS"), (["python3", "-c", attempt_code(body)], "ok")):
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", str(worker.workspace), str(alias), *command],
            cwd=worker.workspace,
            env=worker.environ(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == outcome, done.stderr


@pytest.mark.parametrize("way", ["PYTHONPATH", "-m"])
def test_a_module_put_in_front_of_one_that_skep_imports_is_told_of(worker: Worker, way: str) -> None:
    """By the next start it has run on the host before anything of ours could look at it; by this one it never does."""
    folder = worker.workspace / "src" if way == "PYTHONPATH" else worker.workspace
    folder.mkdir(exist_ok=True)
    there = (
        "sitecustomize.py",
        "signal.py",
        "copy.py",
        "dataclasses.py",
        "weakref.py",
        "msgspec/__init__.py",
        "skep_proxy/__init__.py",
        "_json.abi3.so",
    )
    fine = ("mine.py", "test/cases.py", "signal.txt", "deeper/signal.py")
    environ = {"PYTHONPATH": str(folder)} if way == "PYTHONPATH" else {}
    evil = f"open({str(worker.home / 'ran')!r}, 'w')"
    names = " ".join((*there, *fine))
    make = f'cd {folder} && mkdir msgspec skep_proxy test deeper && for f in {names}; do echo "{evil}" >$f; done'
    report = ("--report", str(worker.home / "report"))
    command = [sys.executable, "-m", "skep_cli", "exec", *report, "--", "sh", "-c", make]
    if way == "PYTHONPATH":
        command[1:3] = [str(Path(sys.executable).with_name("skep"))]
    done = subprocess.run(
        command, cwd=worker.workspace, env=worker.environ(environ), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = {line.split(": ")[1] for line in done.stderr.splitlines() if "skep itself would run it" in line}
    assert told == {str(folder / name.partition("/")[0]) for name in there}
    assert not (worker.home / "ran").exists() and not (folder / "sitecustomize.py").exists()
    assert all((folder / name).exists() for name in (*there[1:], *fine))
    assert json.loads((worker.home / "report").read_text())["exit_code"] == 0
    shutil.rmtree(folder / "msgspec")
    again = worker.run("touch", str(folder / "signal.py"))  # by a skep that does not look there
    assert again.returncode == 0 and "skep itself" not in again.stderr


def test_a_package_is_told_of_whatever_its_first_file_is_and_whichever_is_written(worker: Worker) -> None:
    folder = worker.workspace / "src"
    for name in ("rich", "markdown_it", "mine"):
        (folder / name / "deeper").mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        (folder / name / "deeper/code.py").touch()
    made, clock = (folder / "mine/deeper/code.py").stat().st_ctime, worker.home / "clock"

    def is_older_than_what_counts_as_new() -> bool:
        clock.touch()
        return clock.stat().st_ctime > made + 2

    assert eventually(is_older_than_what_counts_as_new)
    make = (
        "cd src; mkdir click h11 anyio usercustomize pygments; echo > click/__init__.pyc; echo > h11/__init__.abi3.so;"
        "echo > usercustomize/__init__.pyc; echo > pygments/data; echo > sniffio; echo > anyio/__init__.py;"
        "chmod 111 anyio; echo 1 >> rich/deeper/code.py; echo 1 >> mine/deeper/code.py"
    )
    done = worker.run("sh", "-c", make, environ={"PYTHONPATH": str(folder)})
    assert done.returncode == 0, done.stderr
    told = {line.split(": ")[1] for line in done.stderr.splitlines() if "skep itself would run it" in line}
    assert told == {str(folder / name) for name in ("click", "h11", "anyio", "usercustomize", "rich")}
    assert not (folder / "usercustomize").exists()
    where = "import importlib.util; print(importlib.util.find_spec('click').origin)"
    control = subprocess.run(
        [sys.executable, "-c", where], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True
    )
    assert control.stdout == f"{folder}/click/__init__.pyc\n"


def test_a_file_that_skep_shares_with_an_environment_of_the_project_is_not_written_through_it(worker: Worker) -> None:
    """As uv leaves them, which links the same file of its cache into both."""
    lib, project = worker.home / "lib", worker.workspace / ".venv/lib"
    shutil.copytree(folder_of("click"), lib / "click", ignore=shutil.ignore_patterns("__pycache__"))
    (lib / "start.pth").write_text("import hack; hack.go()\n")
    (lib / "hack.py").touch()
    (lib / "other.py").touch()
    shutil.copytree(lib, project, copy_function=os.link)
    ours = [lib / name for name in ("click/core.py", "click/__init__.py", "hack.py", "start.pth")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in ours]
    assert ours[0].samefile(project / "click/core.py")
    environ, python = {"PYTHONPATH": str(lib), "PYTHONDONTWRITEBYTECODE": "1"}, Path(sys.executable)
    body = "".join(f"open({str(project / path.relative_to(lib))!r}, 'a').write('#'); " for path in ours)
    assert attempt(worker, python, environ, body) == "ok"
    assert [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in ours] == before
    assert all(
        (project / path.relative_to(lib)).read_bytes() == was + b"#"
        for path, (was, *_) in zip(ours, before, strict=True)
    )
    assert (lib / "other.py").samefile(project / "other.py"), "skep runs nothing of it"
    files = {path: path.stat().st_ino for path in lib.rglob("*")}
    assert attempt(worker, python, environ, "pass") == "ok"
    assert {path: path.stat().st_ino for path in lib.rglob("*")} == files, "once"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_a_shared_file_of_skep_cannot_be_replaced_no_worker_starts(worker: Worker) -> None:
    lib = worker.home / "lib"
    lib.mkdir()
    (lib / "h11.py").touch()
    os.link(lib / "h11.py", worker.workspace / "h11.py")
    lib.chmod(0o500)
    try:
        done = worker.run("touch", "started", environ={"PYTHONPATH": str(lib)})
    finally:
        lib.chmod(0o700)
    assert done.returncode == 125 and not (worker.workspace / "started").exists()
    assert len(done.stderr.splitlines()) == 1 and f"{lib}/h11.py" in done.stderr and "--link-mode copy" in done.stderr


def test_everything_that_a_start_of_skep_may_import_is_known() -> None:
    distributions, done = [package.replace("_", "-") for package in PACKAGES], set[str]()
    while distributions:
        name = distributions.pop()
        if name not in done:
            done.add(name)
            required = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
            distributions += [
                canonicalize_name(each.name) for each in required if each.marker is None or each.marker.evaluate()
            ]
    modules = importlib.metadata.packages_distributions()
    needed = {module for module, owners in modules.items() if done & {canonicalize_name(owner) for owner in owners}}
    assert {module for module in needed if module.isidentifier()} <= NEEDED
