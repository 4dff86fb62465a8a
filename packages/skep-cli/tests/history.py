"""A repository with a past: hundreds of commits, branches and merges, tags, binary files, renames, modes and links."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .stage import git

COMMITS = 300
MODULES = 12
EVERY_BRANCH = 10
"""A branch of two commits begins at every such commit, and is merged three commits later."""


def make_history(folder: Path) -> Path:
    """The repository, its working tree clean, on `main`."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "fast-import", "--quiet", text=b"".join(_stream()))
    git(folder, "reset", "-q", "--hard", "main")
    return folder


def noise(seed: int, size: int) -> bytes:
    """Bytes that neither compress nor repeat, the same for the same seed."""
    blocks = (hashlib.sha256(f"{seed}/{n}".encode()).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def _data(content: bytes) -> bytes:
    return b"data %d\n" % len(content) + content + b"\n"


def _file(path: str, content: bytes, mode: str = "100644") -> bytes:
    return f"M {mode} inline {path}\n".encode() + _data(content)


def _module(number: int, commit: int) -> bytes:
    lines = [f"def function_{line}():\n    return {line}\n\n\n" for line in range(8)]
    lines[commit % 8] = f"def function_{commit % 8}():\n    return {commit}\n\n\n"
    return f'"""Module {number}, as of commit {commit}."""\n\n\n{"".join(lines)}'.encode()


def _commit(ref: str, mark: int, when: int, text: str, parents: list[str], changes: bytes) -> bytes:
    who = f"Author {mark % 4} <author{mark % 4}@example.com> {when} +0000"
    head = f"commit {ref}\nmark :{mark}\nauthor {who}\ncommitter {who}\n".encode()
    links = "".join(f"{'from' if n == 0 else 'merge'} {parent}\n" for n, parent in enumerate(parents))
    return head + _data(text.encode()) + links.encode() + changes + b"\n"


def _stream() -> Iterator[bytes]:
    """A stream of `git fast-import`."""
    files = b"".join(
        [
            _file("README.md", b"# A project with a past\n"),
            _file(".gitignore", b"__pycache__/\n*.log\nbuild/\n"),
            _file(".gitattributes", b"*.bin binary\n"),
            _file("check.sh", b"python3 -c 'import src.module_0 as m; assert m.function_1() == 2'\n"),
            _file("tool.sh", b"#!/bin/sh\necho tool\n", "100755"),
            _file("link", b"README.md", "120000"),
            _file("src/__init__.py", b""),
            *(_file(f"src/module_{number}.py", _module(number, 0)) for number in range(MODULES)),
        ]
    )
    mark = 1
    yield _commit("refs/heads/main", mark, 1_600_000_000, "Begin\n", [], files)
    main, side = mark, 0
    for step in range(1, COMMITS):
        mark += 1
        when = 1_600_000_000 + 3600 * step
        if step % EVERY_BRANCH in (1, 2):
            name = f"refs/heads/topic-{step // EVERY_BRANCH:02}"
            change = _file(f"docs/topic-{step // EVERY_BRANCH}.md", f"Topic, step {step}\n".encode())
            yield _commit(name, mark, when, f"Topic {step}\n", [f":{side or main}"], change)
            side = mark
        elif step % EVERY_BRANCH == 5:
            change = _file(f"docs/topic-{step // EVERY_BRANCH}.md", f"Topic, step {step - 3}\n".encode())
            yield _commit("refs/heads/main", mark, when, f"Merge {step}\n", [f":{main}", f":{side}"], change)
            main, side = mark, 0
        else:
            number = step % MODULES
            change = _file(f"src/module_{number}.py", _module(number, step if number else 0))
            if step % 40 == 0:
                change += _file(f"assets/image-{step}.bin", noise(step, 20_000))
            if step == 157:
                change += b"R README.md docs/README.md\n" + _file("README.md", b"# Moved\n")
            yield _commit("refs/heads/main", mark, when, f"Change module {number}, step {step}\n", [f":{main}"], change)
            main = mark
        if step % 50 == 0:
            yield f"reset refs/tags/light-{step}\nfrom :{main}\n\n".encode()
            tagger = f"tagger T <t@example.com> {when} +0000\n".encode()
            yield f"tag v{step}\nfrom :{main}\n".encode() + tagger + _data(f"Release {step}\n".encode())
