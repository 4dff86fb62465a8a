"""What `resolve` makes of a policy compiles, and the profile says of its paths what the boundary says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from skep_policy import Access, Facts, Layer, merge, parse_policy, resolve
from skep_seatbelt import settle
from skep_seatbelt.evaluate import Profile, Query, Reading
from skep_seatbelt.places import canonical

from .boundaries import PROXY, launch

POLICY = """
[filesystem]
write = ["~/cache"]
hide = ["~/private"]
protect = ["deploy/"]

[network]
allow = ["example.com", "localhost:5432"]
"""


def test_a_resolved_policy_of_a_repository(tmp_path: Path):
    home = tmp_path / "home"
    repo = home / "repo"
    for folder in (".ssh", "private", "cache", "repo/deploy", "repo/src", "repo/.vscode"):
        (home / folder).mkdir(parents=True)
    (home / ".ssh/id").write_text("hush")
    (home / ".netrc").write_text("hush")
    subprocess.run(["git", "init", "-q", str(repo)], check=True, capture_output=True)
    facts = Facts(home=str(home), user="ada", uid=501, gid=20, cwd=str(repo), environ={"PATH": "/usr/bin:/bin"})
    effective = merge([Layer("test", parse_policy(POLICY, source="test"))])
    boundary = settle(resolve(effective, facts=facts))
    profile = Profile(launch(boundary, proxy=PROXY).evidence)
    seen: set[Access] = set()
    for word in (
        *("repo/f", "repo/src/f", "repo/deploy/f", "repo/.git/config", "repo/.git/hooks/pre-commit", "repo/.vscode/x"),
        *("cache/f", "private/f", ".ssh/id", ".netrc", "other", "repo/.envrc", "repo/.git/index"),
    ):
        path = str(home / word)
        access = boundary.access_to(path)
        seen.add(access)
        for reading in Reading:
            writes = profile.decide(Query("file-write-data", canonical(path)), reading=reading).allow
            reads = profile.decide(Query("file-read-data", canonical(path)), reading=reading).allow
            assert (writes, reads) == (access == Access.WRITE, access != Access.HIDDEN), (word, access)
    assert seen == {Access.HIDDEN, Access.READ, Access.WRITE}
