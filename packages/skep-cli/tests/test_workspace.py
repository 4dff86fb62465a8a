"""The copy has everything, shares nothing, and the original is as it was."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest
from skep_cli.workspace.cloning import by_call
from skep_cli.workspace.copier import Copier, Copy, settle
from skep_cli.workspace.listing import Listing, scan, stamp_of

from .stage import git, make_repo


def copied(source: Path, target: Path) -> Copy:
    return Copier().copy(source, target)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    return source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_contents_modes_and_times_are_those_of_the_original(source: Path, target: Path) -> None:
    (source / "d").mkdir(mode=0o750)
    for name, mode in (("d/a", 0o640), ("x", 0o755), ("ro", 0o444)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
        os.utime(source / name, ns=(1_500_000_000_123_456_789, 1_400_000_000_987_654_321))
    os.utime(source / "d", ns=(1, 1_300_000_000_000_000_001))
    made = copied(source, target)
    for name in ("d/a", "x", "ro", "d"):
        was, now = (source / name).stat(), (target / name).stat()
        assert (was.st_mode, was.st_mtime_ns) == (now.st_mode, now.st_mtime_ns), name
        if name != "d":
            assert (target / name).read_text() == name
            assert made.listing.files[name] == stamp_of(now) and made.sources[name] == stamp_of(was)
    assert made.bytes == 6


def test_links_stay_links_whatever_they_point_to(source: Path, target: Path) -> None:
    for name, to in (
        ("absolute", "/etc/passwd"),
        ("dangling", "nowhere"),
        ("folder", "."),
        ("loop", "loop"),
        ("raw", os.fsdecode(b"\xff")),
    ):
        (source / name).symlink_to(to)
    copied(source, target)
    for name in ("absolute", "dangling", "folder", "loop", "raw"):
        assert os.readlink(target / name) == os.readlink(source / name)


def test_hard_links_are_not_shared_with_the_original_or_each_other(source: Path, target: Path) -> None:
    (source / "a").write_text("one")
    os.link(source / "a", source / "b")
    copied(source, target)
    (target / "a").write_text("two")
    assert [(folder / name).read_text() for folder in (source, target) for name in "ab"] == ["one", "one", "two", "one"]


def test_git_is_copied_and_not_listed(source: Path, target: Path) -> None:
    (source / ".git/objects").mkdir(parents=True)
    (source / ".git/objects/x").write_text("object")
    (source / ".git/index.lock").write_text("somebody is at it")
    (source / "nested/.git").mkdir(parents=True)
    (source / "nested/.git/HEAD").write_text("ref")
    (source / "nested/f").write_text("f")
    (source / "f").write_text("f")
    made = copied(source, target)
    assert (target / ".git/objects/x").read_text() == "object" and (target / "nested/.git/HEAD").exists()
    assert not (target / ".git/index.lock").exists()
    assert made.listing.files.keys() == {"f", "nested/f"} and made.listing.nested == ["nested"]


def test_sockets_and_pipes_are_left_out_and_told(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        made = copied(source, target)
    assert os.listdir(target) == []
    assert {(finding.path, finding.detail.split(",")[0]) for finding in made.listing.findings} == {
        ("pipe", "a pipe"),
        ("sock", "a socket"),
    }


def test_set_id_bits_do_not_come_along(source: Path, target: Path) -> None:
    (source / "tool").write_text("x")
    (source / "tool").chmod(0o6755)
    (source / "d").mkdir()
    (source / "d").chmod(0o2775)
    copied(source, target)
    assert stat.S_IMODE((target / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o775


def test_a_sparse_file_stays_sparse(source: Path, target: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    copied(source, target)
    info = (target / "sparse").stat()
    assert info.st_size == 64 << 20 and info.st_blocks * 512 < 1 << 20
    with (target / "sparse").open("rb") as file:
        file.seek(32 << 20)
        assert file.read(6) == b"middle" and file.read(1) == b"\0"


def test_skeps_own_state_inside_the_tree_is_not_copied(source: Path, target: Path) -> None:
    state = source / ".state/skep"
    state.mkdir(parents=True)
    (state / "run").write_text("x")
    info = state.stat()
    made = Copier(skip=frozenset({(info.st_dev, info.st_ino)})).copy(source, target)
    assert (target / ".state").is_dir() and not (target / ".state/skep").exists()
    assert [finding.detail for finding in made.listing.findings] == ["skep's own state"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_you_cannot_read_is_left_out_and_told(source: Path, target: Path) -> None:
    (source / "file").write_text("x")
    (source / "file").chmod(0)
    (source / "folder").mkdir(mode=0)
    (source / "fine").write_text("x")
    made = copied(source, target)
    (source / "folder").chmod(0o700)
    assert (target / "fine").exists() and not (target / "file").exists()
    assert {finding.path for finding in made.listing.findings} == {"file", "folder"}


def test_names_of_every_kind_are_copied(source: Path, target: Path) -> None:
    names = [
        os.fsdecode(name) for name in (b"new\nline", b"\xff\xfe", b" ", b"-rf", b"$(x)", b"'", b"\x1b[31m", b"a" * 255)
    ]
    for name in names:
        (source / name).write_text(name, errors="surrogateescape")
    made = copied(source, target)
    assert sorted(os.listdir(target)) == sorted(names) == sorted(made.listing.files)


def test_the_original_is_not_touched(repo: Path, target: Path) -> None:
    def stamps() -> dict[str, tuple[int, int, int]]:
        paths = [repo, *repo.rglob("*")]
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_ctime_ns, p.lstat().st_mode) for p in paths}

    before = stamps()
    copied(repo, target)
    assert stamps() == before


def test_a_git_that_packs_its_objects_meanwhile_loses_none_of_them(tmp_path: Path) -> None:
    source = make_repo(tmp_path / "r", {f"f{number}": f"{number}\n" for number in range(300)})

    class Packing(Copier):
        """Packs everything when the first loose object has been copied, as `gc` in the background may."""

        packed = False

        def copy_one(self, folder: int, name: str, target: str, info: os.stat_result) -> bool:
            done = super().copy_one(folder, name, target, info)
            if "/.git/objects/" in target and not self.packed:
                self.packed = True
                git(tmp_path / "r", "gc", "-q", "--prune=now")
                git(tmp_path / "r", "pack-refs", "--all")
            return done

    copier = Packing()
    copier.copy(source, tmp_path / "copy")
    assert copier.packed
    git(tmp_path / "copy", "fsck", "--full", "--strict")
    assert git(tmp_path / "copy", "status", "--porcelain") == ""


@pytest.mark.parametrize("swapped", ["a folder", "what is above it", "a file"])
def test_what_a_worker_swaps_for_a_link_meanwhile_leads_the_copy_nowhere(
    source: Path, target: Path, tmp_path: Path, swapped: str
) -> None:
    secret = tmp_path / "secret"
    for name in ("below/f", "f", "z"):
        (secret / name).parent.mkdir(parents=True, exist_ok=True)
        (secret / name).write_text("hush")
        (source / "zone/inner" / name).parent.mkdir(parents=True, exist_ok=True)
        (source / "zone/inner" / name).write_text("mine")
    (source / "a").write_text("x")
    place = (
        source / {"a folder": "zone/inner/below", "what is above it": "zone/inner", "a file": "zone/inner/z"}[swapped]
    )

    class Swapping(Copier):
        """The folder has been listed, its first file is copied."""

        swapped = False

        def copy_one(self, folder: int, name: str, target: str, info: os.stat_result) -> bool:
            if not self.swapped and target.endswith("zone/inner/f"):
                self.swapped = True
                place.rename(tmp_path / "away")
                place.symlink_to(secret / "z" if swapped == "a file" else secret)
            return super().copy_one(folder, name, target, info)

    copier = Swapping()
    copier.copy(source, target)
    assert copier.swapped and (secret / "f").read_text() == "hush"
    texts = [path.read_text() for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    assert "mine" in texts and "hush" not in texts


def test_a_target_that_exists_is_not_written_into(source: Path, target: Path) -> None:
    target.mkdir()
    with pytest.raises(FileExistsError):
        copied(source, target)


def test_after_it_has_settled_every_change_gets_another_ctime(source: Path, target: Path) -> None:
    for number in range(50):
        (source / f"f{number}").write_text("before")
        made = Copier().copy(source, target / str(number)) if target.exists() else None
        if made is None:
            target.mkdir()
            made = Copier().copy(source, target / str(number))
        settle(made.listing)
        changed = target / str(number) / f"f{number}"
        stamp = made.listing.files[f"f{number}"]
        fd = os.open(changed, os.O_WRONLY)
        os.write(fd, b"beford")
        os.utime(fd, ns=(stamp.mtime_ns, stamp.mtime_ns))
        os.close(fd)
        now = stamp_of(changed.lstat())
        assert (now.size, now.mtime_ns, now.ino) == (stamp.size, stamp.mtime_ns, stamp.ino)
        assert now.ctime_ns != stamp.ctime_ns


def test_a_scan_opens_what_was_closed_and_follows_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "d/secret").write_text("x")
    outside.chmod(0o711)
    tree = tmp_path / "tree"
    (tree / "closed/deep").mkdir(parents=True)
    (tree / "closed/deep/f").write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "closed/deep").chmod(0)
    (tree / "closed").chmod(0)
    os.mkfifo(tree / "pipe")
    found = scan(tree)
    assert found.files.keys() == {"closed/deep/f", "link"}
    assert [(finding.kind, finding.path) for finding in found.findings] == [("special", "pipe")]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o711


@pytest.mark.parametrize("above", ["a", "a" * 190], ids=["alone", "with the folders above"])
def test_a_path_longer_than_a_patch_or_the_system_can_hold_is_told(tmp_path: Path, above: str) -> None:
    """Below a long name the system refuses the path before it is too long for a patch."""
    top = tmp_path / above
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("x" * 200, dir_fd=here)
        deeper = os.open("x" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    found = scan(top)
    assert not found.files
    assert {finding.kind for finding in found.findings} <= {"too-long", "unreadable"} and found.findings


def test_findings_are_bounded() -> None:
    listing = Listing()
    for number in range(5000):
        listing.report("special", str(number), "x")
    assert len(listing.findings) == 1000


def as_on_a_mac(reader: int, target: bytes) -> int:
    """As fclonefileat: the file is made by the call, with the original's mode."""
    if os.path.lexists(target):
        return errno.EEXIST
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(writer, os.pread(reader, 1 << 20, 0))
    os.fchmod(writer, stat.S_IMODE(os.fstat(reader).st_mode))
    os.close(writer)
    return 0


def test_a_clone_that_its_call_makes_has_contents_modes_and_times_and_no_set_id_bits(
    source: Path, target: Path
) -> None:
    for name, mode in (("ro", 0o444), ("x", 0o755), ("setid", 0o6755), ("empty", 0o644)):
        (source / name).write_text("" if name == "empty" else name)
        (source / name).chmod(mode)
        os.utime(source / name, ns=(1, 1_400_000_000_987_654_321))
    made = Copier(clone=by_call(as_on_a_mac)).copy(source, target)
    assert made.cloned and not made.why_copied
    for name, mode in (("ro", 0o444), ("x", 0o755), ("setid", 0o755), ("empty", 0o644)):
        now = (target / name).stat()
        assert (stat.S_IMODE(now.st_mode), now.st_mtime_ns) == (mode, 1_400_000_000_987_654_321)
        assert (target / name).read_text() == ("" if name == "empty" else name)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOTSUP, errno.ENOSYS])
def test_where_nothing_can_be_cloned_it_is_copied_and_said_why(source: Path, target: Path, number: int) -> None:
    tried: list[bytes] = []

    def cannot(reader: int, path: bytes) -> int:
        tried.append(path)
        return number

    for name in ("a", "b"):
        (source / name).write_text(name)
    made = Copier(clone=by_call(cannot)).copy(source, target)
    assert not made.cloned and made.why_copied == os.strerror(number) and len(tried) == 1
    assert [(target / name).read_text() for name in ("a", "b")] == ["a", "b"]


def test_one_file_that_cannot_be_cloned_is_copied_alone(source: Path, target: Path) -> None:
    for name in ("a", "b", "c"):
        (source / name).write_text(name)

    def mostly(reader: int, path: bytes) -> int:
        return errno.EPERM if path.endswith(b"b") else as_on_a_mac(reader, path)

    made = Copier(clone=by_call(mostly)).copy(source, target)
    assert made.cloned and not made.why_copied
    assert [(target / name).read_text() for name in ("a", "b", "c")] == ["a", "b", "c"]


def test_a_full_disk_is_no_reason_to_copy(source: Path, target: Path) -> None:
    (source / "a").write_text("a")
    with pytest.raises(OSError, match="No space") as caught:
        Copier(clone=by_call(lambda reader, path: errno.ENOSPC)).copy(source, target)
    assert caught.value.errno == errno.ENOSPC
