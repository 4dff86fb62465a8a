"""Unix sockets asked of the kernel by their files."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from skep_bwrap import sockdiag


def test_a_socket_is_found_by_its_file_when_it_was_moved(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "before"))
        sock.listen()
        (tmp_path / "folder").mkdir()
        moved = (tmp_path / "before").rename(tmp_path / "folder/after")
        files = sockdiag.files_of([str(tmp_path / "before")])
        assert list(files.values()) == [str(tmp_path / "before")]
        assert list(sockdiag.find(files, [str(tmp_path), str(moved.parent)]).values()) == [str(moved)]
        assert sockdiag.find(files, [str(tmp_path)]) == {}


def test_the_end_of_an_answer_is_seen_behind_other_messages() -> None:
    socket_message = struct.pack("=IHHII", 16 + 6, sockdiag.SOCK_DIAG_BY_FAMILY, 0, 0, 0) + bytes(8)
    done = struct.pack("=IHHIIi", 20, sockdiag.NLMSG_DONE, 0, 0, 0, 0)
    messages = list(sockdiag.messages(socket_message + done))
    assert messages == [(sockdiag.SOCK_DIAG_BY_FAMILY, 0, 22), (sockdiag.NLMSG_DONE, 24, 44)]
