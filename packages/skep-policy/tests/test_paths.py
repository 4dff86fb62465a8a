"""Links are walked as the kernel would, in the worker's view."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import PolicyError
from skep_policy.paths import Tree, expand
from skep_policy.patterns import matches, survey

from .world import Link, World


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("~", "/h"),
        ("~/a", "/h/a"),
        ("a", "/b/a"),
        ("./a/", "/b/./a/"),
        ("/x", "/x"),
        ("~a", "/b/~a"),
        ("../a", "/b/../a"),
    ],
)
def test_a_written_path_is_made_absolute(text: str, path: str) -> None:
    assert expand(text, base="/b", home="/h") == path


LAYOUT = {
    "dir/file": "x",
    "dir/sub/deep": "x",
    "to-file": Link("dir/file"),
    "to-dir": Link("dir"),
    "dir/up": Link(".."),
    "dir/abs": Link("ROOT/dir/sub"),
    "chain": Link("to-dir/up/to-file"),
    "dangling": Link("nowhere/else"),
    "dot": Link("."),
    "root": Link("/"),
    "dir/slashed": Link("../dir//sub/."),
    "self": Link("self"),
    "ping": Link("pong"),
    "pong": Link("ping"),
    "dir/through": Link("../to-dir/sub/../sub"),
}

NAMES = [
    "dir",
    "file",
    "sub",
    "deep",
    "to-file",
    "to-dir",
    "up",
    "abs",
    "chain",
    "dangling",
    "self",
    "ping",
    "through",
    "dot",
    "root",
    "slashed",
]
STEPS = [*NAMES, "..", ".", "", "absent"]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World(tmp_path_factory.mktemp("layout").resolve())
    root = str(world.root)
    world.add({k: Link(v.replace("ROOT", root)) if isinstance(v, Link) else v for k, v in LAYOUT.items()})
    return world.root


@given(parts=st.lists(st.sampled_from(STEPS), max_size=7))
def test_a_path_leads_where_the_kernel_says(layout: Path, parts: list[str]) -> None:
    path = "/".join([str(layout), *parts])
    tree = Tree()
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if ".." in parts:
            return  # the kernel stops where `..` follows what is absent or a file; see below
        place = tree.place(path)
        kinds = ("file", "absent") if parts[-1] in ("", ".") else ("absent",)  # a slash after a file is let go
        assert place.kind in kinds and (place.kind == "absent") is not os.path.lexists(place.path)
    except PermissionError:  # `root/root` is the superuser's home, which others may not search
        assert tree.place(path).blocked
    except OSError:
        with pytest.raises(PolicyError, match="cycle"):
            tree.place(path)
    else:
        place = tree.place(path)
        assert place.path == os.path.realpath(path)
        assert place.kind == ("dir" if stat.S_ISDIR(mode) else "file")


def test_a_link_is_remembered_with_its_text(layout: Path) -> None:
    place = Tree().place(f"{layout}/chain")
    assert [(os.path.relpath(link, layout), text) for link, text in place.links] == [
        *(("chain", "to-dir/up/to-file"), ("to-dir", "dir"), ("dir/up", ".."), ("to-file", "dir/file"))
    ]


def test_a_mapped_folder_is_looked_at_where_it_stands_on_the_host(world: World) -> None:
    """What the repository has is not what the run's copy has; links of the copy lead where the worker will go."""
    world.add({"home/repo/only-here": "x", "copy/only-there": "x", "copy/back": Link(f"{world.repo}/only-there")})
    tree = Tree({str(world.repo): str(world.root / "copy")})
    assert tree.place(f"{world.repo}/only-here").kind == "absent"
    assert tree.place(f"{world.repo}/only-there").kind == "file"
    assert tree.place(f"{world.repo}/back").path == f"{world.repo}/only-there"
    assert tree.host(f"{world.repo}/only-there") == f"{world.root}/copy/only-there"
    assert tree.host(f"{world.repo}x") == f"{world.repo}x"


def test_a_folder_nobody_may_search_blocks(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root searches everything")
    world.add({"closed/inner/file": "x"})
    (world.root / "closed").chmod(0)
    try:
        place = Tree().place(f"{world.root}/closed/inner/file")
    finally:
        (world.root / "closed").chmod(0o700)
    assert place.blocked and place.path == f"{world.root}/closed"


def test_a_name_too_long_is_refused_and_a_small_file_is_read_only_when_small(world: World) -> None:
    tree = Tree()
    with pytest.raises(PolicyError, match="too long"):
        tree.place("/" + "x" * 300)
    world.add({"small": "text", "link": Link("small")})
    assert tree.read(f"{world.root}/small", 4) == "text"
    assert tree.read(f"{world.root}/small", 3) is None
    assert tree.read(f"{world.root}/link", 10) is None
    assert tree.read(f"{world.root}", 10) is None and tree.read(f"{world.root}/absent", 10) is None


# Patterns

FILES = ["a.pem", "b.txt", ".env", ".env.local", "x/a.pem", "x/y/a.pem", "x/y/z/.env", "app/[id]/page", "app/i/page"]
PATTERNS = {
    "*.pem": ["a.pem"],
    "**/*.pem": ["a.pem", "x/a.pem", "x/y/a.pem"],
    "x/**/*.pem": ["x/a.pem", "x/y/a.pem"],
    "x/**": ["x/a.pem", "x/y", "x/y/a.pem", "x/y/z", "x/y/z/.env"],
    "**/.env*": [".env", ".env.local", "x/y/z/.env"],
    ".env*": [".env", ".env.local"],
    "app/[id]/*": ["app/[id]/page"],
    "app/?/page": ["app/i/page"],
    "*/y": ["x/y"],
    "**/y/**/.env": ["x/y/z/.env"],
    "none/*": [],
    "**/none": [],
    "b.txt/*": [],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(world: World, pattern: str) -> None:
    world.add(dict.fromkeys(FILES, "x") | {"loop": Link("."), "out": Link("/etc")})
    found = matches(f"{world.root}/{pattern}", Tree())
    names = [os.path.relpath(path, world.root) for path in found]
    assert [name for name in names if not name.startswith(("home", "loop", "out"))] == PATTERNS[pattern]


def test_a_path_that_exists_under_the_letters_of_a_pattern_is_that_path(world: World) -> None:
    world.add({"a*b": "x", "acb": "x"})
    assert matches(f"{world.root}/a*b", Tree()) == [f"{world.root}/a*b"]


def test_a_pattern_that_matches_too_much_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add({f"many/{n}": "x" for n in range(30)})
    monkeypatch.setattr("skep_policy.patterns.MAX_MATCHES", 20)
    with pytest.raises(PolicyError, match="more than 20 paths"):
        matches(f"{world.root}/many/*", Tree())
    monkeypatch.setattr("skep_policy.patterns.MAX_MATCHES", 30)
    assert len(matches(f"{world.root}/many/*", Tree())) == 30
    monkeypatch.setattr("skep_policy.patterns.MAX_LOOKED", 20)
    with pytest.raises(PolicyError, match="too far"):
        matches(f"{world.root}/many/absent*", Tree())


def test_a_pattern_looks_only_below_what_it_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add({"deep/down/a.pem": "x", "deep/down/b.txt": "x"} | {f"other/{n}": "x" for n in range(20)})
    monkeypatch.setattr("skep_policy.patterns.MAX_LOOKED", 2)
    assert matches(f"{world.root}/deep/down/*.pem", Tree()) == [f"{world.root}/deep/down/a.pem"]
    assert matches(f"{world.root}/deep/absent/*.pem", Tree()) == []


def test_the_walk_for_nested_names_is_bounded_and_skips_dependencies(world: World) -> None:
    world.add({"w/a/.git/HEAD": "x", "w/a/.git/deep/.git": "x", "w/node_modules/p/.git": "x", "w/.git": "x"})
    world.add({"w/link": Link("../outside"), "outside/.git": "x"})
    world.add({"w/b/HEAD": "x", "w/b/objects/.git": "x", "w/b/refs/x": "x", "w/b/behind/.git": "x"})
    names = frozenset({".git"})
    seen = survey(f"{world.root}/w", names, Tree(), limit=100)
    assert [os.path.relpath(path, world.root) for path in seen.paths()] == ["w/a/.git", "w/b/behind/.git", "w/b"]
    assert seen.complete and not survey(f"{world.root}/w", names, Tree(), limit=3).complete


def test_climbing_back_over_what_is_absent_means_what_was_written(world: World) -> None:
    world.add({"deploy/f": "x"})
    place = Tree().place(f"{world.root}/new/deeper/../../deploy")
    assert (place.path, place.kind) == (f"{world.root}/deploy", "dir")
    assert Tree().place(f"{world.root}/new/../../../../../../../../..").path == "/"
