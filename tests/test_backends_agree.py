"""One boundary, three opinions on every path: what the boundary says, what Bubblewrap's mounts show, what the Seatbelt
profile allows. None of the three is made from another.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from skep_bwrap.mounts import filesystem_ops
from skep_policy.boundary import Access, Boundary, Limits, PathRule, below
from skep_policy.rules import Rules
from skep_seatbelt import Unenforceable, compile
from skep_seatbelt.evaluate import Profile, Query, Reading


def of_tests(package: str, name: str) -> ModuleType:
    """A module beside the tests of a package."""
    path = Path(__file__).parents[1] / "packages" / package / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{package.replace('-', '_')}_{name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


visible = of_tests("skep-bwrap", "evaluate").visible
FACTS = of_tests("skep-bwrap", "boundaries").FACTS

NAMES = ("a", "b", "é", 'q"x', "b\\y", "sp ace", "(p)", ".git")
HOME = "/srv/u"


def joined(folder: str, names: list[str]) -> str:
    return "/".join((folder, *names))


PATHS = st.builds(joined, st.sampled_from((HOME, "/data")), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))


def rules(access: Access) -> st.SearchStrategy[list[PathRule]]:
    one = st.builds(PathRule, PATHS, st.just(access), st.just("dir"))
    return st.lists(one, max_size=4, unique_by=lambda rule: rule.path)


@st.composite
def boundaries(draw: st.DrawFn) -> Boundary:
    roots = draw(rules(Access.WRITE))
    taken = {root.path for root in roots}
    return Boundary(
        workspace=HOME,
        cwd=HOME,
        home=HOME,
        uid=501,
        gid=20,
        roots=tuple(roots),
        protects=tuple(draw(rules(Access.READ))),
        hides=tuple(rule for rule in draw(rules(Access.HIDDEN)) if rule.path not in taken),
        reads=(PathRule("/data", Access.READ, "dir"),),
        watched=(),
        mapped={},
        read=draw(st.sampled_from(("host", "minimal"))),
        devices=(),
        sockets=(),
        rules=Rules(),
        env={"PATH": "/usr/bin"},
        limits=Limits(),
    )


def shown(boundary: Boundary, path: str) -> Access:
    """What Bubblewrap shows there."""
    seen = visible(filesystem_ops(boundary, FACTS, own_names=False), path)
    return Access.HIDDEN if seen.host is None else Access.WRITE if seen.writable else Access.READ


def allowed(profile: Profile, path: str, reading: Reading) -> Access:
    """What Seatbelt allows there."""
    reads = profile.decide(Query("file-read-data", path), reading=reading).allow
    writes = profile.decide(Query("file-write-data", path), reading=reading).allow
    assert reads or not writes
    return Access.WRITE if writes else Access.READ if reads else Access.HIDDEN


@settings(max_examples=400, deadline=None)
@given(boundaries(), st.data())
def test_the_boundary_the_mounts_and_the_profile_say_the_same_of_every_path(
    boundary: Boundary, data: st.DataObject
) -> None:
    try:
        launch = compile(boundary, ["true"], tag="skep-t", python="/usr/bin/python3", shim="/usr/lib/shim.py")
    except Unenforceable:
        assume(False)
        raise
    profile = Profile(launch.evidence)
    named = [rule.path for rule in (*boundary.roots, *boundary.protects, *boundary.hides)]
    near = st.builds(joined, st.sampled_from(named or [HOME]), st.lists(st.sampled_from(NAMES), max_size=2))
    # A root inside a protect loses to it, and inside a hide as well Bubblewrap then shows nothing: less, never more.
    odd = any(below(root.path, rule.path) for root in boundary.roots for rule in boundary.protects)
    for path in data.draw(st.lists(near | PATHS, min_size=1, max_size=8)):
        access = boundary.access_to(path)
        assert shown(boundary, path) == access or (odd and shown(boundary, path) < access), path
        for reading in Reading:
            assert allowed(profile, path, reading) == access, (path, reading)
