"""A report is where the operator said, whatever workers do to its place. No sandbox is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_cli.reportfile import Before, ReportFile
from skep_policy.boundary import Watched
from skep_policy.value import replace

from .test_findings import boundary


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/out").mkdir(parents=True)
    return tmp_path / "root"


def test_a_report_replaces_what_the_file_held(root: Path) -> None:
    (root / "report").write_text("x" * 1000)
    ReportFile(f"{root}/report", boundary(root)).write(b"{}")
    assert (root / "report").read_bytes() == b"{}"


def test_a_link_that_leads_out_of_what_the_worker_writes_is_refused(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for link, to in (("report", mine), ("folder", tmp_path), ("first", "report"), ("new", tmp_path / "absent")):
        (root / link).symlink_to(to)
    for name in ("report", "folder/mine", "first", "new"):
        with pytest.raises(OSError, match="the worker can write this link"):
            ReportFile(f"{root}/{name}", boundary(root))
    assert mine.read_text() == "kept" and not (tmp_path / "absent").exists()


@pytest.mark.parametrize("to", ["skep.toml", ".envrc", "out/.envrc", "watched", "watched/below"])
def test_a_link_to_what_the_host_runs_by_itself_is_refused(root: Path, to: str) -> None:
    """None of these is there yet, so nothing covers it."""
    (root / "report").symlink_to(to)
    bounds = replace(boundary(root), watched=(Watched(f"{root}/watched", "a test"),))
    with pytest.raises(OSError, match="the worker can write this link"):
        ReportFile(f"{root}/report", bounds)
    assert not (root / to).exists()
    (root / "report").unlink()
    (root / "report").symlink_to("out/report")
    ReportFile(f"{root}/report", bounds).write(b"{}")
    assert (root / "out/report").read_bytes() == b"{}"


def test_links_the_worker_did_not_make_or_that_stay_inside_are_followed(root: Path, tmp_path: Path) -> None:
    (root / "inside").symlink_to("out/report")
    (tmp_path / "outside").symlink_to(tmp_path / "elsewhere")
    ReportFile(f"{root}/inside", boundary(root)).write(b"one")
    ReportFile(f"{tmp_path}/outside", boundary(root)).write(b"two")
    assert (root / "out/report").read_bytes() == b"one" and (tmp_path / "elsewhere").read_bytes() == b"two"


@pytest.mark.parametrize("instead", ["file", "link", "nothing"])
def test_what_the_worker_put_in_its_place_is_not_taken_for_the_report(root: Path, tmp_path: Path, instead: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    report = ReportFile(f"{root}/report", boundary(root))
    (root / "report").unlink()
    if instead == "file":
        (root / "report").write_text("forged")
    elif instead == "link":
        (root / "report").symlink_to(mine)
    report.write(b"{}")
    assert (root / "report").read_bytes() == b"{}" and not (root / "report").is_symlink()
    assert mine.read_text() == "kept"


def test_a_report_whose_folder_was_replaced_is_an_error(root: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/report").write_text("kept")
    report = ReportFile(f"{root}/out/report", boundary(root))
    (root / "out").rename(root / "moved")
    (root / "out").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="the worker can write this link"):
        report.write(b"{}")
    assert (tmp_path / "theirs/report").read_text() == "kept"


def test_a_report_goes_into_a_pipe_that_is_read_and_waits_for_no_reader(root: Path) -> None:
    read, write = os.pipe()
    ReportFile(f"/proc/self/fd/{write}", boundary(root)).write(b"{}")
    os.close(write)
    assert os.read(read, 100) == b"{}"
    os.close(read)
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match="No such device"):
        ReportFile(f"{root}/pipe", boundary(root))


@pytest.mark.parametrize("relative", [False, True])
def test_an_earlier_report_is_gone_when_none_was_written_and_a_file_behind_a_link_is_not(
    root: Path, tmp_path: Path, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "report").write_text("earlier")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/report").write_text("kept")
    (root / "folder").symlink_to(tmp_path / "mine")
    for name in ("report", "folder/report"):
        Before(name if relative else f"{root}/{name}").remove_unwritten()
    assert not (root / "report").exists()
    assert (tmp_path / "mine/report").read_text() == "kept"
