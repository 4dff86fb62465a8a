"""Repositories as they are found, each with a script that a worker runs in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from .stage import GIT, NOBODY, PLAIN, git, make_repo

FILES: dict[str, str | bytes] = {
    "a.txt": "one\ntwo\nthree\n",
    "b.bin": bytes(range(256)) * 4,
    "d/c.txt": "c\n",
    "d/e/g": "g\n",
    ".gitignore": "*.log\nnode_modules/\n",
}
EDIT = "echo four >> a.txt; mkdir -p n/m; echo new > n/m/f; rm d/c.txt; printf x >> b.bin; echo x > x.log"


class Case:
    """A repository to name (`repo`), and where its tree and its git are."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.repo = base / "repo"
        self.top = self.repo
        self.script = EDIT
        self.raw: tuple[str, ...] = ()
        """Changed files that go through a filter of the user's, and so stand on the branch as they are on disk."""
        self.unlike: tuple[str, ...] = ()
        """Changed files that git compares with other bytes than those on disk: it applies no patch of these to them."""
        self.foreign: tuple[str, ...] = ()
        """Folders of other repositories, which no branch of this one can hold."""


Make = Callable[[Case], None]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    CASES[make.__name__.replace("_", " ")] = make
    return make


def settle(repo: Path) -> None:
    """The index is younger than all it knows, as in any repository that was not made this very moment."""
    index = Path(git(repo, "rev-parse", "--path-format=absolute", "--git-path", "index").strip())
    if index.exists():
        later = index.stat().st_mtime + 2
        os.utime(index, (later, later))


def plain(case: Case, *init: str, files: dict[str, str | bytes] | None = None) -> Path:
    return make_repo(case.repo, files or FILES, *init)


@case
def linked_worktree(case: Case) -> None:
    main = make_repo(case.base / "main", FILES)
    git(main, "worktree", "add", "-q", str(case.repo), "-b", "side")


@case
def worktree_with_its_own_settings(case: Case) -> None:
    main = make_repo(case.base / "main", FILES)
    git(main, "config", "extensions.worktreeConfig", "true")
    git(main, "worktree", "add", "-q", str(case.repo), "-b", "side")
    git(case.repo, "config", "--worktree", "core.sparseCheckout", "true")
    git(case.repo, "sparse-checkout", "set", "--cone", "d")
    case.script = "echo four >> a.txt; echo n > d/n"


@case
def inside_a_submodule(case: Case) -> None:
    inner = make_repo(case.base / "inner", FILES)
    main = make_repo(case.base / "main", {"m": "m\n"})
    git(main, "submodule", "--quiet", "add", str(inner), "sub")
    git(main, "commit", "-qm", "sub")
    case.repo = case.top = main / "sub"


@case
def with_a_submodule(case: Case) -> None:
    inner = make_repo(case.base / "inner", {"i": "i\n"})
    plain(case)
    git(case.repo, "submodule", "--quiet", "add", str(inner), "sub")
    git(case.repo, "commit", "-qm", "sub")
    case.script = f"{EDIT}; echo x > sub/i; echo y > sub/new"
    case.foreign = ("sub",)


@case
def with_an_absent_submodule(case: Case) -> None:
    inner = make_repo(case.base / "inner", {"i": "i\n"})
    main = make_repo(case.base / "main", FILES)
    git(main, "submodule", "--quiet", "add", str(inner), "sub")
    git(main, "commit", "-qm", "sub")
    git(case.base, "clone", "-q", str(main), str(case.repo))


@case
def a_folder_of_a_repository(case: Case) -> None:
    plain(case, files={"in/a.txt": "a\n", "in/d/c.txt": "c\n", "in/b.bin": b"\0\1", "out": "o\n"})
    case.repo = case.top / "in"
    case.script = f"{EDIT}; echo o > ../out"


@case
def large_file_pointers_without_the_program(case: Case) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12345\n"
    attributes = "*.psd filter=lfs diff=lfs merge=lfs -text\n"
    plain(case, files={**FILES, ".gitattributes": attributes, "art.psd": pointer, "other.psd": pointer})
    case.script = f"{EDIT}; echo new > new.psd; printf 'drawn' > art.psd"


LFS = {"clean": "sed s/SMUDGED/stored/", "smudge": "sed s/stored/SMUDGED/", "required": "true"}


@case
def smudged_content_that_differs_from_what_is_stored(case: Case) -> None:
    plain(case, files={**FILES, "art.psd": "stored 1\n", "other.psd": "stored 2\n", "gone.psd": "stored 3\n"})
    for key, value in LFS.items():
        git(case.repo, "config", f"filter.lfs.{key}", value)
    (case.repo / ".gitattributes").write_text("*.psd filter=lfs -text\n")
    git(case.repo, "add", "-A")
    git(case.repo, "commit", "-qm", "filter")
    for name in ("art.psd", "other.psd", "gone.psd"):
        (case.repo / name).unlink()
    git(case.repo, "checkout", "--", ".")
    assert (case.repo / "art.psd").read_text() == "SMUDGED 1\n"
    case.script = f"{EDIT}; echo more >> art.psd; rm gone.psd"
    case.raw, case.unlike = ("art.psd",), ("art.psd", "gone.psd")


def checked_out_anew(repo: Path, *names: str) -> None:
    for name in names:
        (repo / name).unlink()
    git(repo, "checkout", "--", ".")


@case
def line_endings_by_attribute(case: Case) -> None:
    attributes = "*.txt text eol=crlf\n*.bat text eol=crlf\n*.sh text eol=lf\n*.bin -text\n"
    plain(case, files={**FILES, ".gitattributes": attributes, "w.bat": "x\ny\n", "s.sh": "s\n"})
    checked_out_anew(case.repo, "a.txt", "d/c.txt", "w.bat")
    assert b"\r\n" in (case.repo / "a.txt").read_bytes()
    case.script = (
        "printf 'four\\r\\n' >> a.txt; rm d/c.txt; printf x >> b.bin; echo t >> s.sh; printf 'z\\r\\n' >> w.bat"
    )


@case
def line_endings_by_setting(case: Case) -> None:
    plain(case)
    git(case.repo, "config", "core.autocrlf", "true")
    checked_out_anew(case.repo, "a.txt", "d/c.txt", "d/e/g")
    assert b"\r\n" in (case.repo / "a.txt").read_bytes()
    case.script = "printf 'four\\r\\n' >> a.txt; rm d/c.txt; printf x >> b.bin"


@case
def carriage_returns_that_are_stored(case: Case) -> None:
    plain(case, files={**FILES, "w.txt": "x\r\ny\r\n", "mixed.txt": "x\r\ny\nz\r\n"})
    case.script = f"{EDIT}; printf 'z\\r\\n' >> w.txt; sed -i s/y/Y/ mixed.txt; printf 'new\\r\\n' > crlf.txt"


@case
def another_encoding(case: Case) -> None:
    plain(case, files={**FILES, ".gitattributes": "*.u16 text working-tree-encoding=UTF-16LE\n"})
    (case.repo / "t.u16").write_bytes("eins\nzwei\n".encode("utf-16-le"))
    (case.repo / "u.u16").write_bytes("drei\n".encode("utf-16-le"))
    git(case.repo, "add", "-A")
    git(case.repo, "commit", "-qm", "encoded")
    case.script = f"{EDIT}; printf 'v\\0\\n\\0' >> t.u16"
    case.unlike = ("t.u16",)


@case
def identifiers_that_are_expanded(case: Case) -> None:
    plain(case, files={**FILES, ".gitattributes": "*.c ident\n", "x.c": "/* $Id$ */\nint x;\n", "y.c": "/* $Id$ */\n"})
    checked_out_anew(case.repo, "x.c", "y.c")
    assert "$Id: " in (case.repo / "x.c").read_text()
    case.script = f"{EDIT}; echo 'int y;' >> x.c"
    case.unlike = ("x.c",)


@case
def sparse_checkout_by_folder(case: Case) -> None:
    plain(case, files={**FILES, "out/x": "x\n", "out/y/z": "z\n"})
    git(case.repo, "sparse-checkout", "set", "--cone", "d")
    assert not (case.repo / "out").exists()


@case
def sparse_checkout_by_pattern(case: Case) -> None:
    plain(case, files={**FILES, "out/x": "x\n", "out/keep": "k\n"})
    git(case.repo, "sparse-checkout", "set", "--no-cone", "/*", "!/out/x")
    assert (case.repo / "out/keep").exists() and not (case.repo / "out/x").exists()
    case.script = f"{EDIT}; echo k >> out/keep"


@case
def sparse_index(case: Case) -> None:
    plain(case, files={**FILES, "out/x": "x\n", "out/y/z": "z\n"})
    git(case.repo, "sparse-checkout", "set", "--cone", "--sparse-index", "d")


def history(folder: Path) -> Path:
    made = make_repo(folder, FILES)
    for number in range(3):
        (made / "a.txt").write_text(f"{number}\n" * 3)
        git(made, "commit", "-qam", str(number))
    git(made, "config", "uploadpack.allowFilter", "true")
    return made


@case
def shallow_clone(case: Case) -> None:
    git(case.base, "clone", "-q", "--depth=1", f"file://{history(case.base / 'origin')}", str(case.repo))


@case
def partial_clone(case: Case) -> None:
    origin = history(case.base / "origin")
    git(case.base, "clone", "-q", "--filter=blob:none", f"file://{origin}", str(case.repo))


@case
def partial_clone_that_is_sparse(case: Case) -> None:
    origin = history(case.base / "origin")
    git(case.base, "clone", "-q", "--sparse", "--filter=blob:none", f"file://{origin}", str(case.repo))
    assert not (case.repo / "d").exists()
    case.script = "echo four >> a.txt; mkdir -p n; echo x > n/f"


@case
def borrowed_objects(case: Case) -> None:
    origin = history(case.base / "origin")
    git(case.base, "clone", "-q", "--shared", str(origin), str(case.repo))


@case
def no_commit_yet(case: Case) -> None:
    make_repo(case.repo)
    for name, content in FILES.items():
        (case.repo / name).parent.mkdir(exist_ok=True, parents=True)
        (case.repo / name).write_bytes(content.encode() if isinstance(content, str) else content)


@case
def detached_head(case: Case) -> None:
    plain(case)
    git(case.repo, "checkout", "-q", "--detach")


@case
def a_repository_made_inside(case: Case) -> None:
    plain(case)
    who = "git -c user.name=w -c user.email=w@x"
    case.script = f"{EDIT}; git init -q inner; echo x > inner/f; cd inner; git add f; {who} commit -qm w; cd .."
    case.foreign = ("inner",)


@case
def an_untracked_repository_inside(case: Case) -> None:
    plain(case)
    make_repo(case.repo / "inner", {"f": "f\n"})
    case.script = f"{EDIT}; echo x >> inner/f"
    case.foreign = ("inner",)


@case
def odd_names(case: Case) -> None:
    names = ['q"uote', "new\nline", "-rf", "--", "tab\there", "back\\slash", " space ", "*", ":(top)x", "ä", "é/ñ"]
    plain(case, files={**FILES, **dict.fromkeys(names, "x\n"), os.fsdecode(b"\xff\xfe"): "bytes\n"})
    (case.repo / "w.py").write_text(
        "import os\n"
        "for name in sorted(os.listdir(b'.')):\n"
        "    if os.path.isfile(name) and name != b'w.py':\n"
        "        open(b'./' + name, 'ab').write(b'w\\n')\n"
        "for name in (b'\\xe9new', b'-new', b'n\\new', b'\"', b'\\x01', b'\\x7f'):\n"
        "    open(b'./' + name, 'wb').write(b'n\\n')\n"
        "os.unlink(b'./*')\nos.rename(b'./--', b'./moved to')\n"
    )
    git(case.repo, "add", "-A")
    git(case.repo, "commit", "-qm", "writer")
    case.script = "python3 w.py"


@case
def names_that_change_case(case: Case) -> None:
    plain(case, files={**FILES, "Readme": "r\n" * 9, "Dir/f": "f\n"})
    case.script = f"{EDIT}; mv Readme README; mv Dir dir; echo q > readme"


@case
def modes(case: Case) -> None:
    plain(case, files={**FILES, "tool": "#!/bin/sh\n", "was": "w\n"})
    (case.repo / "was").chmod(0o755)
    git(case.repo, "commit", "-qam", "mode")
    case.script = f"{EDIT}; chmod +x tool; chmod 644 was; chmod 600 d/e/g; echo x > new; chmod 755 new"


@case
def modes_that_do_not_count(case: Case) -> None:
    plain(case, files={**FILES, "tool": "#!/bin/sh\n"})
    (case.repo / "tool").chmod(0o755)
    git(case.repo, "commit", "-qam", "mode")
    git(case.repo, "config", "core.fileMode", "false")
    (case.repo / "tool").chmod(0o644)
    os.utime(case.repo / "tool", (1e9, 1e9))  # git looks at seconds
    git(case.repo, "update-index", "--refresh")
    case.script = f"{EDIT}; echo t >> tool"


@case
def links(case: Case) -> None:
    plain(case)
    for name, target in (("abs", "/etc/hostname"), ("dangling", "nowhere"), ("folder", "d"), ("loop", "loop")):
        (case.repo / name).symlink_to(target)
    git(case.repo, "add", "-A")
    git(case.repo, "commit", "-qm", "links")
    case.script = (
        f"{EDIT}; ln -s /etc/passwd new-abs; ln -s d/e new-folder; ln -s ../.. new-up; ln -sfn other dangling;"
        "rm abs; echo now a file > abs; rm folder; mkdir folder; echo l > folder/l; rm a.txt; ln -s b.bin a.txt"
    )


@case
def files_and_folders_that_change_places(case: Case) -> None:
    plain(case, files={**FILES, "file": "f\n", "folder/x": "x\n", "folder/y/z": "z\n", "link": "l\n"})
    case.script = (
        f"{EDIT}; rm file; mkdir file; echo a > file/b; rm -r folder; echo f > folder; rm link; ln -s d link; mv d d2"
    )


@case
def a_split_index(case: Case) -> None:
    plain(case)
    git(case.repo, "update-index", "--split-index")
    (case.repo / "s").write_text("s\n")
    git(case.repo, "add", "s")


@case
def untracked_cache_monitor_and_index_of_version_four(case: Case) -> None:
    plain(case)
    git(case.repo, "config", "index.version", "4")
    git(case.repo, "update-index", "--index-version", "4")
    git(case.repo, "config", "core.untrackedCache", "true")
    git(case.repo, "update-index", "--force-untracked-cache")
    hook = case.base / "monitor"
    hook.write_text(f'#!/bin/sh\ntouch {case.base}/ran\nprintf "token\\0/\\0"\n')
    hook.chmod(0o755)
    git(case.repo, "config", "core.fsmonitor", str(hook))
    git(case.repo, "status")
    (case.base / "ran").unlink(missing_ok=True)


@case
def other_hashes(case: Case) -> None:
    plain(case, "--object-format=sha256")


@case
def assumed_unchanged_and_skipped(case: Case) -> None:
    plain(case)
    git(case.repo, "update-index", "--assume-unchanged", "a.txt")
    git(case.repo, "update-index", "--skip-worktree", "d/e/g")
    (case.repo / "d/e/g").write_text("local setting\n")
    case.script = "echo n > n; printf x >> b.bin"


@case
def intent_to_add_and_a_conflict(case: Case) -> None:
    plain(case)
    git(case.repo, "checkout", "-qb", "side")
    (case.repo / "a.txt").write_text("side\n")
    git(case.repo, "commit", "-qam", "side")
    git(case.repo, "checkout", "-q", "main")
    (case.repo / "a.txt").write_text("main\n")
    git(case.repo, "commit", "-qam", "main")
    subprocess.run([GIT, *NOBODY, "merge", "side"], cwd=case.repo, env={**os.environ, **PLAIN}, capture_output=True)
    (case.repo / "later").write_text("l\n")
    git(case.repo, "add", "-N", "later")
    case.script = "echo mine > a.txt; echo l >> later"


@case
def replaced_history_and_packed_ambiguous_references(case: Case) -> None:
    history(case.repo)
    git(case.repo, "replace", "--graft", "HEAD")
    git(case.repo, "tag", "HEAD")
    git(case.repo, "branch", "other")
    git(case.repo, "pack-refs", "--all")


if "--ref-format" in subprocess.run([GIT, "init", "-h"], capture_output=True, text=True, check=False).stdout:

    @case
    def other_references(case: Case) -> None:
        plain(case, "--ref-format=reftable")
