from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_proxy.chunked import ChunkedFilter
from skep_proxy.flow import Truncated
from skep_proxy.http1 import BadMessage

BODY = b"5;a=b\r\nhello\r\n0A\r\n0123456789\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\n"


def read(pieces: list[bytes], *, reframe: bool) -> tuple[bytes, bytes, str]:
    chunked = ChunkedFilter(reframe=reframe)
    out, rest = b"", b""
    for piece in pieces:
        if chunked.state == "more":
            out += chunked.feed(piece)
            rest = chunked.rest
        else:
            rest += piece
    return out, rest, chunked.state


@pytest.mark.parametrize("behind", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_body_is_read_whole_byte_by_byte_and_with_bytes_behind_it(behind: bytes) -> None:
    data = BODY + behind
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        assert read(pieces, reframe=False) == (b"hello0123456789", behind, "done")
    assert read([data], reframe=True)[0] == b"5\r\nhello\r\na\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        *(b"\r\n", b"x\r\n", b" 1\r\n", b"1 \r\n", b"+1\r\n", b"-1\r\n", b"0x1\r\n", b"1_0\r\n", b"1\n", b"1\r\r\n"),
        *(
            b"1\r\nab\r\n",
            b"1\r\na\n",
            b"1\r\na\r1\r\n",
            b"1;\0\r\n",
            b"1;\r\r\n",
            b"1234567890abcdef\r\n",
            b"1;" + b"x" * 5000,
        ),
        *(b"0\r\nX : y\r\n\r\n", b"0\r\n x\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 20000),
    ],
)
def test_what_has_two_readings_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read([body], reframe=True)


def test_source_that_ends_early_is_told_from_one_that_is_done() -> None:
    chunked = ChunkedFilter(reframe=True)
    chunked.feed(b"5\r\nhel")
    with pytest.raises(Truncated):
        chunked.end()


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=10), st.data())
def test_any_split_gives_the_same_bytes(chunks: list[bytes], data: st.DataObject) -> None:
    """However a body is cut up on its way, its content is the same, and what goes on is a body with that content."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if end > start]
    assert read(pieces, reframe=False) == (b"".join(chunks), b"", "done")
    framed, _, _ = read(pieces, reframe=True)
    assert read([framed], reframe=False)[0] == b"".join(chunks)


@given(st.lists(st.sampled_from([b"0", b"1", b"a", b"\r\n", b"\n", b"\r", b";", b":", b" ", b"X", b"\0"]), max_size=30))
def test_what_is_accepted_is_read_in_the_same_way_by_h11(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    try:
        content, _, state = read([body], reframe=False)
        read([body], reframe=True)
    except BadMessage:
        return
    if state != "done":
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert isinstance(connection.next_event(), h11.Request)
    seen = b""
    while isinstance(event := connection.next_event(), h11.Data):
        seen += event.data
    assert isinstance(event, h11.EndOfMessage) and seen == content
