"""For random boundaries and paths, the printed profile and `boundary.access_to` say the same, under every reading."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from skep_policy.boundary import Access, Boundary, PathRule
from skep_seatbelt import Unenforceable
from skep_seatbelt.evaluate import Profile, Query, Reading
from skep_seatbelt.places import STARTUP_READS, ancestors, below, spellings

from .boundaries import boundary, launch, root

PARTS = ("a", "b", "dir", ".git", "é", 'q"x', "b\\y", "sp ace", "(p)", "[b]", "x.y+z*")
TOPS = ("/Users/u", "/private/tmp", "/data")
WRITES = (
    *("file-write-data", "file-write-create", "file-write-unlink", "file-write-mode", "file-write-xattr"),
    *("file-write-flags", "file-write-owner", "file-write-times", "file-write-acl", "file-mknod"),
)
READS = ("file-read-data", "file-read-xattr", "file-read-metadata")
NEVER = ("file-link", "file-clone", "file-mount", "file-write-setugid")


def joined(folder: str, parts: list[str]) -> str:
    return "/".join((folder, *parts))


PATHS = st.builds(joined, st.sampled_from(TOPS), st.lists(st.sampled_from(PARTS), max_size=5))


def rules(access: Access, *, least: int = 0) -> st.SearchStrategy[list[PathRule]]:
    one = st.builds(PathRule, PATHS, st.just(access), st.sampled_from(("dir", "dir", "absent")))
    return st.lists(one, min_size=least, max_size=4, unique_by=lambda rule: rule.path)


def of(
    roots: list[PathRule], protects: list[PathRule], hides: list[PathRule], reads: list[PathRule], read: str
) -> Boundary:
    return boundary(roots=sorted(roots), protects=tuple(protects), hides=tuple(hides), reads=tuple(reads), read=read)


BOUNDARIES = st.builds(
    of,
    rules(Access.WRITE),
    rules(Access.READ),
    rules(Access.HIDDEN),
    rules(Access.READ),
    st.sampled_from(("host", "minimal")),
)


def compiled(one: Boundary) -> Profile:
    try:
        return Profile(launch(one).evidence)
    except Unenforceable:
        assume(False)
        raise


def interesting(one: Boundary) -> st.SearchStrategy[str]:
    named = [rule.path for rule in (*one.roots, *one.protects, *one.hides, *one.reads)]
    if not named:
        return PATHS
    near = st.builds(
        joined,
        st.sampled_from([*named, *(folder for path in named for folder in ancestors(path))]),
        st.lists(st.sampled_from(PARTS), max_size=2),
    )
    return st.one_of(near, PATHS)


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_profile_and_boundary_agree_on_every_path(data: st.DataObject):
    one = data.draw(BOUNDARIES)
    profile = compiled(one)
    kept = {rule.path for rule in one.roots}
    kept |= {folder for rule in (*one.protects, *one.hides) for folder in ancestors(rule.path)}
    for path in data.draw(st.lists(interesting(one), min_size=1, max_size=8)):
        access = one.access_to(path)
        for spelled in spellings(path):
            for reading in Reading:
                for operation in WRITES:
                    if operation == "file-write-unlink" and path in kept:
                        assert not profile.decide(Query(operation, spelled), reading=reading).allow
                        continue
                    got = profile.decide(Query(operation, spelled), reading=reading).allow
                    assert got == (access == Access.WRITE), (path, operation, reading, access)
                startup = one.read == "minimal" and any(below(path, folder) for folder in STARTUP_READS)
                if not startup:
                    got = profile.decide(Query("file-read-data", spelled), reading=reading).allow
                    assert got == (access != Access.HIDDEN), (path, reading, access)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_profile_ever_writes_outside_the_roots_or_reads_what_is_hidden(data: st.DataObject):
    one = data.draw(BOUNDARIES)
    profile = compiled(one)
    path = data.draw(interesting(one))
    hidden = any(below(path, hide.path) for hide in one.hides) and one.access_to(path) == Access.HIDDEN
    on_the_way = any(below(rule.path, path) for rule in one.roots)
    for spelled in spellings(path):
        for reading in Reading:
            for operation in NEVER:
                assert not profile.decide(Query(operation, spelled), reading=reading).allow
            if not any(below(path, rule.path) for rule in one.roots):
                for operation in (*WRITES, "network-bind", "network-outbound"):
                    assert not profile.decide(Query(operation, spelled), reading=reading).allow
            if hidden:
                for operation in (*READS, "file-ioctl", "process-exec*", "network-outbound", "file-map-executable"):
                    if operation == "file-read-metadata" and on_the_way:
                        continue
                    for kind in ("REGULAR-FILE", "DIRECTORY", "SYMLINK"):
                        asked = Query(operation, spelled, names={"vnode-type": kind})
                        assert not profile.decide(asked, reading=reading).allow, operation


@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=12).filter(lambda text: "/" not in text), st.text(max_size=8))
def test_a_root_of_any_name_opens_itself_and_nothing_else(name: str, other: str):
    path = f"/Users/u/{name}"
    try:
        profile = Profile(launch(boundary(roots=[root(path)])).evidence)
    except Unenforceable:
        return
    for reading in Reading:
        assert profile.decide(Query("file-write-create", f"{path}/new"), reading=reading).allow
        beside = f"/Users/u/{other}"
        if not below(beside, path):
            assert not profile.decide(Query("file-write-create", beside), reading=reading).allow


@settings(max_examples=30, deadline=None)
@given(BOUNDARIES)
def test_compiling_twice_gives_the_same_bytes(one: Boundary):
    try:
        first = launch(one)
    except Unenforceable:
        return
    assert first == launch(one)
