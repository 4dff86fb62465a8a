"""Heads: what is accepted has one reading, which is h11's too."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skep_proxy.exchange import destination, request_head
from skep_proxy.http1 import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    BadMessage,
    Body,
    end_to_end,
    head_end,
    parse_request,
    parse_response,
    response_body,
)

HEAD = b"POST http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nX-Y:  z \t\r\n\r\n"

PIECES = st.sampled_from(
    [
        *(
            b"GET",
            b"POST",
            b" ",
            b"\t",
            b"http://a.test/",
            b"/",
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"\r\n",
            b"\n",
            b"\r",
            b"\0",
            b":",
        ),
        *(
            b"Host: a",
            b"Content-Length: 3",
            b"Content-Length:3",
            b"Transfer-Encoding: chunked",
            b"X",
            b" x",
            b"\xff",
            b"\x7f",
        ),
        *(b"Connection: close, x", b"Expect: 100-continue", b"a.test:443", b"\x0b", b"0", b";"),
    ]
)


def test_a_head_is_found_whole_byte_by_byte_and_with_bytes_behind_it() -> None:
    assert head_end(HEAD) == len(HEAD)
    assert head_end(HEAD + b"abc") == len(HEAD)
    looked = 0
    for size in range(len(HEAD)):
        assert head_end(HEAD[:size], looked) == -1
        looked = size
    assert head_end(HEAD, looked) == len(HEAD)


def test_request_head_is_taken_apart() -> None:
    request = parse_request(HEAD)
    assert (request.method, request.target, request.minor) == (b"POST", b"http://a.test/x?y", 1)
    assert request.headers[-1] == (b"x-y", b"X-Y", b"z")
    assert request.body == Body(length=3)
    assert request.keep_alive


@pytest.mark.parametrize("line", [b"GET / HTTP/2.0", b"PRI * HTTP/2.0", b"GET / HTTP/3"])
def test_other_versions_are_told_so(line: bytes) -> None:
    with pytest.raises(BadMessage) as caught:
        parse_request(line + b"\r\nHost: x\r\n\r\n")
    assert caught.value.status == 505


@pytest.mark.parametrize(
    ("status", "fields", "method", "body"),
    [
        (b"200", b"Content-Length: 5\r\n", b"GET", Body(length=5)),
        (b"200", b"Content-Length: 5\r\n", b"HEAD", NO_BODY),
        (b"304", b"Content-Length: 5\r\n", b"GET", NO_BODY),
        (b"204", b"", b"GET", NO_BODY),
        (b"200", b"Transfer-Encoding: chunked\r\n", b"GET", CHUNKED),
        (b"200", b"", b"GET", UNTIL_CLOSE),
    ],
)
def test_how_a_response_body_ends(status: bytes, fields: bytes, method: bytes, body: Body) -> None:
    response = parse_response(b"HTTP/1.1 " + status + b" \r\n" + fields + b"\r\n")
    assert response_body(response, method) == body


def test_fields_that_connection_lists_are_dropped_but_not_those_that_carry_the_message() -> None:
    request = parse_request(
        b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-B: 2\r\nConnection: x-a, host, content-length\r\n\r\n"
    )
    assert end_to_end(request.headers, request.options) == b"Host: a\r\nX-B: 2\r\n"


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://A.test", b"/", b"a.test"),
        (b"HTTP://a.test:80/x", b"/x", b"a.test"),
        (b"http://a.test:81?q", b"/?q", b"a.test:81"),
        (b"http://[::1]:8080/", b"/", b"[::1]:8080"),
        (b"http://a.test:/", b"/", b"a.test"),
    ],
)
def test_absolute_form_becomes_origin_form(target: bytes, path: bytes, host: bytes) -> None:
    request = parse_request(b"GET " + target + b" HTTP/1.1\r\nHost: other\r\n\r\n")
    where = destination(request)
    assert where.target is not None and where.path == path
    assert (
        request_head(request, where.target, where.path) == b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
    )


@given(st.binary(max_size=300) | st.lists(PIECES, max_size=20).map(b"".join))
@example(HEAD)
def test_whatever_comes_is_a_request_or_a_bad_message(data: bytes) -> None:
    """A head is parsed or refused; nothing else is raised, and what is parsed holds no byte that ends a line."""
    end = head_end(data + b"\r\n\r\n")
    try:
        request = parse_request((data + b"\r\n\r\n")[:end])
    except BadMessage:
        return
    for _, name, value in request.headers:
        assert not set(name + value) & set(b"\r\n\0")
    assert not set(request.target) & set(b"\r\n\0 \t")


@given(st.lists(PIECES, max_size=12).map(b"".join), st.sampled_from([b"GET", b"POST", b"PUT"]))
def test_what_is_accepted_is_read_in_the_same_way_by_h11(fields: bytes, method: bytes) -> None:
    """Differential: same method, target, fields and framing as another parser, for every head that passes ours."""
    data = method + b" /x HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n\r\n"
    try:
        request = parse_request(data[: head_end(data)])
    except BadMessage:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data[: head_end(data)])
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (request.method, request.target)
    assert [(bytes(name), bytes(value)) for name, value in event.headers] == [
        (lower, value.lower() if lower == b"transfer-encoding" else value) for lower, _, value in request.headers
    ]


@given(st.binary(max_size=300) | st.lists(PIECES, max_size=20).map(b"".join))
def test_whatever_comes_is_a_response_or_a_bad_message(data: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n"
    try:
        response_body(parse_response(data[: head_end(data)]), b"GET")
    except BadMessage:
        pass
