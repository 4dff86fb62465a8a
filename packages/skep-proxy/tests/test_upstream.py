"""The operator's own proxy: which one, for what, and never seen from inside."""

from __future__ import annotations

import base64
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_proxy import Upstream, UpstreamError
from skep_proxy.ask import Refused, ask
from skep_proxy.testing import Origin, read_all, read_exactly, read_head
from skep_proxy.upstream import Hop, parse_hop

from .conftest import Make, Serve, reserved_port


def hop_for(environ: dict[str, str], host: str, port: int = 443, *, plain: bool = False) -> tuple[str, int] | None:
    hop = Upstream.from_environ(environ).hop(host, port, plain=plain)
    return None if hop is None else (hop.host, hop.port)


def test_tunnels_and_plain_requests_have_their_own_variables() -> None:
    both = {"HTTPS_PROXY": "http://tunnels:1", "HTTP_PROXY": "http://plain:2"}
    assert hop_for(both, "a.test") == ("tunnels", 1)
    assert hop_for(both, "a.test", plain=True) == ("plain", 2)
    assert hop_for({"ALL_PROXY": "all:3"}, "a.test") == ("all", 3)
    assert hop_for({"ALL_PROXY": "all:3", "https_proxy": "http://lower"}, "a.test") == ("lower", 80)
    assert hop_for({}, "a.test") is None


def test_http_proxy_is_not_believed_under_cgi() -> None:
    assert hop_for({"HTTP_PROXY": "http://evil", "REQUEST_METHOD": "GET"}, "a.test", plain=True) is None
    assert hop_for({"http_proxy": "http://good", "REQUEST_METHOD": "GET"}, "a.test", plain=True) == ("good", 80)


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "direct"),
    [
        ("*", "a.test", 443, True),
        ("a.test", "a.test", 443, True),
        ("a.test", "x.a.test", 443, True),
        ("a.test", "xa.test", 443, False),
        (".a.test", "x.a.test", 443, True),
        ("*.a.test", "x.a.test", 443, True),
        ("b.test, a.test", "a.test", 443, True),
        ("b.test a.test", "a.test", 443, True),
        ("a.test:8443", "a.test", 8443, True),
        ("a.test:8443", "a.test", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::/8]:22", "fd00::1", 22, True),
        ("fd00::/8", "10.1.2.3", 443, False),
        ("0.0.0.0/0", "a.test", 443, False),
        ("http://nonsense/, 10.0.0.1/8, :", "a.test", 443, False),
        ("", "localhost", 443, True),
        ("", "127.0.0.1", 443, True),
        ("", "::1", 443, True),
    ],
)
def test_no_proxy(no_proxy: str, host: str, port: int, direct: bool) -> None:
    environ = {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": no_proxy}
    assert (hop_for(environ, host, port) is None) is direct


def test_credentials_are_decoded_and_stay_out_of_sight() -> None:
    hop = parse_hop("http://us%40er:p%3Ass:word@proxy.test:3128/")
    assert (hop.host, hop.port) == ("proxy.test", 3128)
    assert hop.authorization == b"Basic " + base64.b64encode(b"us@er:p:ss:word")
    assert "Basic" not in repr(hop) and "word" not in repr(Upstream(hop, hop))


@pytest.mark.parametrize(
    "url",
    [
        *("socks4://proxy:1", "https://u:secret@proxy:1", "http://", "http://user:secret@", "http://a b:1", "x:y:z"),
        *("socks5://user@proxy:1", f"socks5h://u:secret{'x' * 255}@proxy:1", "socks://proxy:1"),
    ],
)
def test_what_cannot_be_used_is_refused_without_telling_the_password(url: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        Upstream.from_environ({"ALL_PROXY": url})
    assert "ALL_PROXY" in str(caught.value) and "secret" not in str(caught.value)


@given(st.text(max_size=50), st.text(max_size=50))
def test_whatever_is_in_the_environment(proxy: str, no_proxy: str) -> None:
    try:
        upstream = Upstream.from_environ({"ALL_PROXY": proxy, "NO_PROXY": no_proxy})
    except UpstreamError:
        return
    upstream.hop("a.test", 443, plain=False)


class Middle:
    """An HTTP proxy of someone else: answers CONNECT and absolute-form requests itself."""

    def __init__(self, serve: Serve, answer: bytes = b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n") -> None:
        self.heads: list[bytes] = []
        self.answer = answer
        self.origin = serve(self._handle)

    def _handle(self, sock: socket.socket) -> None:
        while head := read_head(sock):
            self.heads.append(head)
            if head.startswith(b"CONNECT"):
                sock.sendall(self.answer + b"first")
                if b" 200 " in self.answer:
                    sock.sendall(sock.recv(100).upper())
                return
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def upstream(self, userinfo: str = "") -> Upstream:
        hop = parse_hop(f"http://{userinfo}127.0.0.1:{self.origin.port}")
        return Upstream(hop, hop)


def test_tunnel_goes_through_the_upstream_proxy(make: Make, serve: Serve) -> None:
    middle = Middle(serve)
    setup = make(upstream=middle.upstream("me:secret@")).listen("good.test", private=[])
    tunnel = setup.tunnel("good.test:443", b"hello")
    assert read_all(tunnel) == b"firstHELLO", "bytes behind the upstream's answer are kept"
    assert middle.heads[0].startswith(b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:secret") in middle.heads[0]
    assert setup.table.asked == [], "the upstream resolves"
    assert b" 403 " in read_all(setup.connect("bad.test:443"))
    assert len(middle.heads) == 1, "and sees nothing of what is denied"


def test_plain_request_goes_through_the_upstream_proxy(make: Make, serve: Serve) -> None:
    middle = Middle(serve)
    setup = make(upstream=middle.upstream("me:secret@")).listen("good.test", "[2001:db8::1]:81")
    client = setup.client(b"GET http://good.test/x HTTP/1.1\r\nHost: y\r\nProxy-Authorization: Basic mine\r\n\r\n")
    assert read_head(client).startswith(b"HTTP/1.1 200 OK")
    head = middle.heads[0]
    assert head.startswith(b"GET http://good.test/x HTTP/1.1\r\nHost: good.test\r\n")
    assert base64.b64encode(b"me:secret") in head and b"mine" not in head
    setup.client(b"GET http://[2001:db8::1]:81/ HTTP/1.1\r\nHost: y\r\n\r\n").recv(1)
    assert middle.heads[1].startswith(b"GET http://[2001:db8::1]:81/ HTTP/1.1\r\nHost: [2001:db8::1]:81\r\n")


def test_exempt_host_is_dialled_directly(make: Make, serve: Serve, origin: Origin) -> None:
    middle = Middle(serve)
    environ = {"ALL_PROXY": f"http://127.0.0.1:{middle.origin.port}", "NO_PROXY": "good.test"}
    setup = make(upstream=Upstream.from_environ(environ)).listen(f"good.test:{origin.port}")
    setup.names["good.test"] = "127.0.0.1"
    assert b"origin ok" in setup.tunnel(f"good.test:{origin.port}", b"GET / HTTP/1.0\r\n\r\n").recv(1000)
    assert middle.heads == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"answered 407"),
        (b"nonsense\r\n\r\n", b"not HTTP"),
        (b"", b"hung up"),
    ],
)
def test_upstream_that_refuses_is_a_502_without_secrets(make: Make, serve: Serve, answer: bytes, text: bytes) -> None:
    middle = Middle(serve, answer)
    middle.answer = answer
    setup = make(upstream=middle.upstream("me:secret@")).listen("good.test")
    told = read_all(setup.connect("good.test:443"))
    assert told.startswith(b"HTTP/1.1 502 ") and text in told
    assert b"secret" not in told and b"Basic" not in told
    why = f"127.0.0.1:{middle.origin.port}"
    assert why.encode() not in told, "the operator's own proxy is invisible"
    assert setup.events.wait(lambda events: [why in (event.unreached or "") for event in events.closed] == [True])


def test_upstream_that_is_down_is_a_502(make: Make) -> None:
    with reserved_port() as port:
        hop = Hop("127.0.0.1", port)
        setup = make(upstream=Upstream(hop, hop)).listen("good.test")
        for told in (
            read_all(setup.connect("good.test:443")),
            read_all(setup.client(b"GET http://good.test/ HTTP/1.0\r\n\r\n")),
        ):
            assert b" 502 " in told and b"upstream proxy" in told and b"127.0.0.1" not in told
    why = f"upstream proxy: 127.0.0.1:{hop.port}: Connection refused"
    assert setup.events.wait(lambda events: [event.unreached for event in events.closed] == [why] * 2)


class MiddleSocks:
    """A SOCKS5 proxy of someone else, written from RFC 1928 and 1929 alone: says what it was asked, then speaks HTTP.
    `code` is what it replies with, `pace` how many bytes it sends at a time.
    """

    def __init__(self, serve: Serve, *, code: int = 0, user: bytes = b"", pace: int = 100) -> None:
        self.asked: list[tuple[int, bytes, int]] = []
        self.shown: list[bytes] = []
        self.code = code
        self.user = user
        self.pace = pace
        self.origin = serve(self._handle)

    def _say(self, sock: socket.socket, data: bytes) -> None:
        for at in range(0, len(data), self.pace):
            sock.sendall(data[at : at + self.pace])

    def _handle(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        version, count = read_exactly(sock, 2)
        methods = read_exactly(sock, count)
        assert version == 5
        wanted = 2 if self.user else 0
        if wanted not in methods:
            self._say(sock, b"\x05\xff")
            return
        self._say(sock, bytes((5, wanted)))
        if self.user:
            _, size = read_exactly(sock, 2)
            user = read_exactly(sock, size)
            password = read_exactly(sock, read_exactly(sock, 1)[0])
            self.shown.append(user + b":" + password)
            self._say(sock, b"\x01" + bytes((user != self.user,)))
            if user != self.user:
                return
        assert read_exactly(sock, 3) == b"\x05\x01\x00"
        kind = read_exactly(sock, 1)[0]
        size = {1: 4, 4: 16}.get(kind) or read_exactly(sock, 1)[0]
        self.asked.append((kind, read_exactly(sock, size), int.from_bytes(read_exactly(sock, 2), "big")))
        self._say(sock, bytes((5, self.code, 0)) + (b"\x03\x04here" if kind == 3 else b"\x01\x7f\0\0\1") + b"\0\x50")
        if self.code == 0:
            head = read_head(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))

    def upstream(self, userinfo: str = "", scheme: str = "socks5h") -> Upstream:
        hop = parse_hop(f"{scheme}://{userinfo}127.0.0.1:{self.origin.port}")
        return Upstream(hop, hop)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
@pytest.mark.parametrize("pace", [1, 100])
def test_a_socks_proxy_of_the_operators_is_asked_for_names_and_addresses(
    make: Make, serve: Serve, scheme: str, pace: int
) -> None:
    middle = MiddleSocks(serve, pace=pace)
    setup = make(upstream=middle.upstream(scheme=scheme)).listen("good.test", "192.0.2.1", "[2001:db8::1]:443")
    for target in ("good.test:443", "192.0.2.1:80", "[2001:db8::1]:443"):
        assert read_all(setup.tunnel(target, b"GET /x HTTP/1.0\r\n\r\n")).endswith(b"GET /x HTTP/1.0\r\n\r\n")
    assert middle.asked == [
        (3, b"good.test", 443),
        (1, socket.inet_pton(socket.AF_INET, "192.0.2.1"), 80),
        (4, socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 443),
    ]
    assert setup.table.asked == [] and b" 403 " in read_all(setup.connect("bad.test:443"))
    assert len(middle.asked) == 3


def test_plain_requests_go_through_a_socks_proxy_as_the_origin_wants_them(make: Make, serve: Serve) -> None:
    middle = MiddleSocks(serve)
    setup = make(upstream=middle.upstream()).listen("good.test")
    client = setup.client(b"GET http://good.test/x HTTP/1.1\r\nHost: y\r\n\r\n")
    assert read_head(client).startswith(b"HTTP/1.1 200 OK")
    assert client.recv(1000).startswith(b"GET /x HTTP/1.1\r\nHost: good.test\r\n")
    assert middle.asked == [(3, b"good.test", 80)]


def test_a_socks_proxy_is_shown_its_user_and_password(make: Make, serve: Serve) -> None:
    middle = MiddleSocks(serve, user=b"me@x")
    setup = make(upstream=middle.upstream("me%40x:p%3Aw@")).listen("good.test")
    assert b" 200 " in read_head(setup.connect("good.test:443"))
    assert middle.shown == [b"me@x:p:w"]
    hop = parse_hop("socks5h://me:secret@proxy.test")
    assert hop.port == 1080 and "secret" not in repr(hop)


@pytest.mark.parametrize(
    ("options", "userinfo", "text"),
    [
        ({"code": 2}, "", b"does not allow"),
        ({"code": 5}, "", b"was refused"),
        ({"code": 99}, "", b"code 99"),
        ({"user": b"me"}, "", b"wants a user and password"),
        ({"user": b"me"}, "you:secret@", b"does not take"),
    ],
)
def test_a_socks_proxy_that_refuses_is_a_502_with_what_it_said(
    make: Make, serve: Serve, options: dict[str, Any], userinfo: str, text: bytes
) -> None:
    middle = MiddleSocks(serve, **options)
    setup = make(upstream=middle.upstream(userinfo)).listen("good.test")
    told = read_all(setup.connect("good.test:443"))
    assert told.startswith(b"HTTP/1.1 502 ") and text in told
    assert b"secret" not in told and b"127.0.0.1" not in told


@given(st.binary(max_size=80), st.sampled_from(["http://u:p@x:1", "socks5h://u:p@x:1", "socks5h://x:1"]), st.data())
def test_whatever_an_upstream_proxy_says(noise: bytes, url: str, data: st.DataObject) -> None:
    """However it is cut up, it is a tunnel, a refusal or a wait for more, and the bytes behind a tunnel's answer are
    left alone.
    """
    answers = {"h": b"HTTP/1.1 200 OK\r\n\r\n", "s": b"\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50"}
    good = answers[url[0]]
    cut = data.draw(st.integers(0, len(good)))
    for stream, stands in ((good + noise, True), (good[:cut] + noise, None)):
        asking = ask(parse_hop(url), "good.test", 443)
        at = 0
        done = False
        try:
            while at < len(stream) and not done:
                step = data.draw(st.integers(1, 20))
                seen = stream[at : at + step]
                wanted = asking.wanted(seen)
                assert 0 < wanted <= len(seen)
                at += wanted
                done = asking.feed(seen[:wanted]) is None
        except Refused:
            assert stands is None
            continue
        assert stands is None or (done and at == len(good))
