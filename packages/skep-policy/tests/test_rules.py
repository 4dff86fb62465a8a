"""Rules: what they match, who wins, and that the index says what a naive evaluator says."""

from __future__ import annotations

import ipaddress
import pickle
from collections.abc import Iterable
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import PolicyError, Rules, Verdict, parse_rule, parse_target
from skep_policy.address import aliases
from skep_policy.rules import LOCALHOST, REMEMBERED
from skep_policy.verdict import DENIED_BY_RULE

Use = Literal["allow", "deny", "private"]


def decide(host: str, port: int = 443, *, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> bool:
    return Rules.build(allow, deny).decide(host, port).allow


MATCHES = [
    ("ex.com", "ex.com", 443, True),
    ("ex.com", "ex.com", 80, True),
    ("ex.com", "ex.com", 22, False),
    ("ex.com", "sub.ex.com", 443, False),
    ("ex.com", "EX.com.", 443, True),
    ("ex.com:8443", "ex.com", 8443, True),
    ("ex.com:8443", "ex.com", 443, False),
    ("ex.com:*", "ex.com", 1, True),
    ("ex.com:*", "ex.com", 65535, True),
    ("*.ex.com", "a.ex.com", 443, True),
    ("*.ex.com", "a.b.c.ex.com", 443, True),
    ("*.ex.com", "ex.com", 443, False),
    ("*.ex.com", "evil-ex.com", 443, False),
    ("*.ex.com", "ex.com.evil.org", 443, False),
    ("*.ex.com:22", "a.ex.com", 22, True),
    ("*.ex.com:22", "a.ex.com", 443, False),
    ("*.bücher.example", "a.xn--bcher-kva.example", 443, True),
    ("*", "anything.example", 1, True),
    ("*", "10.0.0.1", 1, True),
    ("*", "::1", 1, True),
    ("*:443", "anything.example", 443, True),
    ("*:443", "anything.example", 80, False),
    ("192.0.2.7", "192.0.2.7", 443, True),
    ("192.0.2.7", "::ffff:192.0.2.7", 443, True),
    ("192.0.2.7", "192.0.2.8", 443, False),
    ("10.0.0.0/8:22", "10.200.1.1", 22, True),
    ("10.0.0.0/8:22", "11.0.0.0", 22, False),
    ("10.0.0.0/8:22", "10.0.0.1", 443, False),
    ("10.0.0.0/8", "a10.0.0.example", 443, False),
    ("[2001:db8::/32]:22", "2001:db8:ffff::1", 22, True),
    ("[2001:db8::1]:22", "[2001:DB8::1]", 22, True),
    ("2001:db8::1", "2001:db8::2", 443, False),
    ("fd00::/8", "fdff::1", 80, True),
    ("0.0.0.0/0:*", "8.8.8.8", 53, True),
    ("0.0.0.0/0:*", "example.com", 53, False),
    ("::/0", "8.8.8.8", 443, False),
    ("localhost", "localhost", 80, True),
    ("localhost", "127.0.0.1", 80, True),
    ("localhost", "::1", 443, True),
    ("localhost", "127.0.0.1", 22, False),
    ("localhost", "127.0.0.2", 80, False),
    ("app.localhost", "127.0.0.1", 80, False),
    ("127.0.0.1", "localhost", 80, False),
]


@pytest.mark.parametrize(("rule", "host", "port", "allow"), MATCHES)
def test_matches(rule: str, host: str, port: int, allow: bool) -> None:
    assert decide(host, port, allow=[rule]) is allow


REFUSED = [
    ("", "empty"),
    ("   ", "empty"),
    (" a.com", '"a.com"'),
    ("http://ex.com", '"ex.com"'),
    ("https://ex.com:8443/path?q", '"ex.com:8443"'),
    ("ex.com/path", '"ex.com"'),
    ("*foo.com", '"*.foo.com"'),
    ("foo*.com", '"*.'),
    ("foo*", '"*.'),
    ("a.*.com", '"*.'),
    ("a.*", '"*.'),
    ("**.ex.com", '"*.ex.com"'),
    ("*.*.ex.com", '"*.ex.com"'),
    ("*.", "*.name"),
    ("*.com", '"*.example.com"'),
    ("*.com.", '"*.example.com"'),
    ("*.net:443", '"*.example.net"'),
    ("*.xn--p1ai", '"*.example.xn--p1ai"'),
    ("*.1.2.3.4", "network"),
    ("ex.com:notaport", '"ex.com:443"'),
    ("ex.com:", '"ex.com:443"'),
    ("ex.com:0", "65535"),
    ("ex.com:65536", "65535"),
    ("ex.com:0443", '"ex.com:443"'),
    ("ex.com:80,443", '"ex.com:443"'),
    ("ex.com:80-90", '"ex.com:443"'),
    ("10.1.2.3/8", '"10.0.0.0/8"'),
    ("[fd00::1/8]:443", '"fd00::/8"'),
    ("ex.com/24", '"ex.com"'),
    ("10.0.0.1/x", '"10.1.0.0/16"'),
    ("10.0.0.0/33", '"10.1.0.0/16"'),
    ("fd00::/8:443", '"[fd00::/8]:443"'),
    ("[fd00::]/8", "*.name"),
    ("127.1", "decimal"),
    ("0x7f.1", "decimal"),
    ("2130706433", "decimal"),
    ("user@ex.com", "*.name"),
    ("ex.com%00", "*.name"),
    ("ex.com\r\nx", "*.name"),
    ("ex com", "*.name"),
    ("fe80::1%eth0", "zone"),
    ("[::1", "brackets"),
    ("a" * 64 + ".com", "63"),
    ("xn--a.com", "IDNA"),
    ("*:0", "65535"),
]


@pytest.mark.parametrize(("rule", "instead"), REFUSED, ids=[ascii(rule[0][:30]) for rule in REFUSED])
def test_refuses_with_what_to_write_instead(rule: str, instead: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_rule(rule)
    assert instead in str(error.value) and "\n" not in str(error.value) and "\r" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["test", "internal", "local", "localhost", "example", "invalid", "onion", "home.arpa", "lan"]
)
def test_wildcards_over_names_nobody_can_register_are_rules(name: str) -> None:
    assert decide(f"a.{name}", allow=[f"*.{name}"])


def test_a_denied_wildcard_may_cover_a_whole_top_level_domain() -> None:
    rules = Rules.build(["*"], ["*.zip"])
    assert not rules.decide("a.zip", 443).allow and rules.decide("a.example", 443).allow


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("EX.com.", "ex.com"),
        ("Bücher.example:22", "xn--bcher-kva.example:22"),
        ("*.EX.com:*", "*.ex.com:*"),
        ("*:*", "*"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
        ("[FD00::/8]:*", "[fd00::/8]:*"),
        ("10.0.0.0/32:1", "10.0.0.0:1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ],
)
def test_a_rule_has_a_normal_form_that_parses_to_itself(text: str, normal: str) -> None:
    rule = parse_rule(text)
    assert rule.text == normal == str(rule)
    assert parse_rule(normal) == rule


@pytest.mark.parametrize("allow", ["*", "*:*", "*.ex.com", "a.ex.com", "a.ex.com:443", "*.ex.com:*"])
@pytest.mark.parametrize("deny", ["*", "*.ex.com", "a.ex.com", "a.ex.com:443", "*:443", "*.com"])
def test_deny_beats_allow_at_any_specificity(allow: str, deny: str) -> None:
    assert decide("a.ex.com", allow=[allow])
    verdict = Rules.build([allow], [deny]).decide("a.ex.com", 443)
    assert verdict == Verdict(False, "denied-by-rule", parse_rule(deny, use="deny").text, "flag")


def test_a_deny_without_a_port_denies_every_port_and_one_with_a_port_only_that() -> None:
    assert not decide("ex.com", 22, allow=["ex.com:*"], deny=["ex.com"])
    assert decide("ex.com", 22, allow=["ex.com:*"], deny=["ex.com:443"])
    assert not decide("ex.com", 443, allow=["ex.com:*"], deny=["ex.com:443"])


def test_a_parsed_rule_denies_every_port_too_wherever_it_was_parsed() -> None:
    rules = Rules.build(["*"], [parse_rule("ex.com")])
    assert not rules.decide("ex.com", 22).allow


@pytest.mark.parametrize(
    ("deny", "host"),
    [
        ("8.8.8.8", "64:ff9b::808:808"),
        ("8.8.8.0/24", "2002:808:808::1"),
        ("8.8.8.8", "::8.8.8.8"),
        ("127.0.0.0/8", "0.0.0.0"),
        ("127.0.0.1", "::"),
        ("::1", "::"),
        ("127.0.0.1", "::ffff:0.0.0.0"),
    ],
)
def test_a_denied_address_is_denied_in_every_disguise(deny: str, host: str) -> None:
    allow = ["*", "0.0.0.0/0:*", "[::/0]:*"]
    assert decide(host, allow=allow)
    assert not decide(host, allow=allow, deny=[deny])


@pytest.mark.parametrize("host", ["", "127.1", "a b", "a\r\nb", "fe80::1%eth0", "a@b", "a.com\0"])
def test_malformed_is_a_denying_verdict_even_with_allow_all(host: str) -> None:
    assert Rules.build(["*"]).decide(host, 443) == Verdict(False, "malformed")


@pytest.mark.parametrize("port", [0, -1, 65536, 10**9])
def test_a_port_that_is_none_is_malformed(port: int) -> None:
    assert Rules.build(["*"]).decide("a.com", port) == Verdict(False, "malformed")


def test_an_empty_allow_list_is_nothing() -> None:
    rules = Rules.build()
    assert rules.mode == "none"
    assert rules.decide("a.com", 443) == Verdict(False, "not-listed")


def test_the_verdict_names_the_most_specific_rule_and_its_source() -> None:
    rules = Rules.build(
        [parse_rule(text, source=text) for text in ("*", "*.com.example", "*.a.com.example", "b.a.com.example")]
    )
    assert rules.decide("b.a.com.example", 80).rule == "b.a.com.example"
    assert rules.decide("c.a.com.example", 80).source == "*.a.com.example"
    assert rules.decide("c.b.com.example", 80).source == "*.com.example"
    assert rules.decide("c.b.com.example", 81).source == "*"
    nets = Rules.build(["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3"])
    assert [nets.decide(ip, 80).rule for ip in ("10.1.2.3", "10.1.2.4", "10.2.0.0", "9.0.0.0")] == [
        *("10.1.2.3", "10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0")
    ]


@pytest.mark.parametrize(
    ("allow", "deny", "budget", "mode"),
    [
        ([], ["a.com"], None, "none"),
        (["a.com"], [], None, "filtered"),
        (["*"], [], None, "open"),
        (["*:*", "a.com"], [], None, "open"),
        (["*"], ["a.com"], None, "filtered"),
        (["*"], [], 1, "filtered"),
        (["*:443"], [], None, "filtered"),
        (["0.0.0.0/0:*", "[::/0]:*"], [], None, "filtered"),
    ],
)
def test_mode(allow: list[str], deny: list[str], budget: int | None, mode: str) -> None:
    assert Rules.build(allow, deny, max_bytes_out=budget).mode == mode


def test_ports_are_those_of_what_is_not_a_service() -> None:
    rules = Rules.build(["a.com", "b.com:22", "10.0.0.0/8:5432", "localhost:11434", "127.0.0.1:6379", "[::1]:7"])
    assert rules.ports == {80, 443, 22, 5432}
    assert rules.services == (("127.0.0.1", 6379), ("::1", 7), ("localhost", 11434))
    assert Rules.build(["a.com:*", "b.com"]).ports is None
    assert Rules.build(["localhost"]).services == (("localhost", 80), ("localhost", 443))
    assert Rules.build().ports == frozenset() and Rules.build().services == ()


# Who may be dialled


def dialled(
    host: str, ip: str, *, allow: list[str], deny: list[str] | None = None, private: list[str] | None = None
) -> bool:
    rules = Rules.build(allow, deny or [], private or [])
    verdict = rules.decide(host, 5432)
    assert verdict.allow
    checked = rules.check_address(verdict, ip)
    assert checked is verdict or checked == Verdict(False, "private-address", verdict.rule, verdict.source)
    return checked.allow


INSIDE = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "0.0.0.0",
    "100.64.0.1",
    "::1",
    "fd00::1",
    "fe80::1%eth0",
    "224.0.0.1",
]
DISGUISED = ["::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "198.18.0.1", "240.0.0.1"]


@pytest.mark.parametrize("ip", INSIDE + DISGUISED)
@pytest.mark.parametrize("allow", ["db.ex.com:*", "*.ex.com:*", "*"])
def test_a_name_that_resolves_inside_is_denied_unless_it_is_private(allow: str, ip: str) -> None:
    assert not dialled("db.ex.com", ip, allow=[allow])
    assert dialled("db.ex.com", ip, allow=[allow], private=["db.ex.com"])
    assert dialled("db.ex.com", ip, allow=[allow], private=["*.ex.com"])
    assert not dialled("db.ex.com", ip, allow=[allow], private=["other.ex.com"])
    assert dialled("db.ex.com", "8.8.8.8", allow=[allow])


@pytest.mark.parametrize(
    "allowed", ["localhost:80", "127.0.0.1:80", "[::1]:80", "[64:ff9b::127.0.0.1]:80", "0.0.0.0:80"]
)
@pytest.mark.parametrize("denied", ["localhost", "127.0.0.1", "::1", "localhost:80"])
def test_who_denies_localhost_by_one_of_its_names_denies_it_by_all(allowed: str, denied: str) -> None:
    host = parse_target(allowed).host
    assert Rules.build(allow=[allowed]).decide(host, 80).allow
    verdict = Rules.build(allow=[allowed], deny=[denied]).decide(host, 80)
    assert (verdict.allow, verdict.reason, verdict.rule) == (False, DENIED_BY_RULE, denied)
    assert Rules.build(allow=[allowed], deny=["127.0.0.2"]).decide(host, 80).allow


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.9.9.9"])
@pytest.mark.parametrize("host", ["localhost", "app.localhost"])
def test_a_rule_that_says_localhost_dials_loopback(host: str, ip: str) -> None:
    assert dialled(host, ip, allow=[f"{host}:5432"])


@pytest.mark.parametrize("ip", ["10.0.0.1", "8.8.8.8", "169.254.169.254", "0.0.0.0", "fe80::1"])
@pytest.mark.parametrize("private", [[], ["localhost"], ["*"]])
def test_a_rule_that_says_localhost_dials_nothing_else(ip: str, private: list[str]) -> None:
    assert not dialled("localhost", ip, allow=["localhost:5432"], private=private)


def test_localhost_by_allow_all_is_guarded_like_any_name() -> None:
    assert not dialled("localhost", "127.0.0.1", allow=["*"], deny=["ex.com"])


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "fd00::1"])
def test_a_literal_or_network_rule_lets_the_address_be_dialled(ip: str) -> None:
    rule = f"[{ip}]:5432" if ":" in ip else f"{ip}:5432"
    assert dialled(ip, ip, allow=[rule])
    assert dialled(ip, ip, allow=["*", "0.0.0.0/0:*", "[::/0]:*"])
    assert not dialled(ip, ip, allow=["*"])
    assert not dialled(ip, ip, allow=["*"], deny=["ex.com"])
    assert dialled(ip, ip, allow=["*"], private=["*"])


def test_a_network_rule_says_nothing_about_names() -> None:
    rules = Rules.build(["10.0.0.0/8:5432"])
    assert rules.decide("10.0.0.1", 5432).allow and not rules.decide("db.ex.com", 5432).allow


def test_no_address_at_all_is_denied_even_where_private_is_allowed() -> None:
    assert not dialled("db.ex.com", "not an address", allow=["db.ex.com:*"], private=["db.ex.com"])


def test_a_denying_verdict_stays_the_one_it_is() -> None:
    rules = Rules.build(["a.com"])
    verdict = rules.decide("b.com", 443)
    assert rules.check_address(verdict, "8.8.8.8") is verdict


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8", "::1", "db.internal:5432", "db.internal:*"])
def test_private_takes_names_without_ports_only(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_rule(text, use="private")
    assert parse_rule("db.internal", use="private")


# Values


def test_rules_survive_being_written_down() -> None:
    rules = Rules.build(
        ["a.com", "*.b.com:22", "*"], ["10.0.0.0/8", "*.zip"], ["db.internal"], sni="off", max_bytes_out=5
    )
    again = pickle.loads(pickle.dumps(rules))
    assert again == rules and again.decide("x.zip", 1) == rules.decide("x.zip", 1)
    assert msgspec.to_builtins(rules)["private"][0] == msgspec.to_builtins(rules.private[0])


def test_the_same_rule_twice_counts_once_and_keeps_its_first_source() -> None:
    rules = Rules.build([parse_rule("a.com", source="user"), "A.com.", parse_rule("a.com", source="flag")])
    assert [rule.source for rule in rules.allow] == ["user"]


def test_one_text_is_not_a_list() -> None:
    with pytest.raises(TypeError):
        Rules.build("a.com")


# The naive evaluator: one rule at a time, from the words of the documentation.


def naive_match(text: str, host: str, port: int, use: Use) -> bool:
    if text == "*":
        return True
    if text.startswith("["):
        target, _, rest = text[1:].partition("]")
        written = rest.removeprefix(":")
    elif text.count(":") > 1:
        target, written = text, ""
    else:
        target, _, written = text.partition(":")
    if written == "":
        ports: range | set[int] = range(1, 65536) if use == "deny" else {80, 443}
    else:
        ports = range(1, 65536) if written == "*" else {int(written)}
    return port in ports and naive_target(target, host)


def naive_target(target: str, host: str) -> bool:
    if target == "*":
        return True
    if target.startswith("*."):
        return naive_address(host) is None and host.endswith(target[1:])
    address = naive_address(host)
    try:
        network = ipaddress.ip_network(target)
    except ValueError:
        return host == target
    return address is not None and address.version == network.version and address in network


def naive_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def naive_decide(allow: list[str], deny: list[str], host: str, port: int) -> bool:
    spellings = [host, *(aliases(host) if naive_address(host) else ()), *(LOCALHOST if host in LOCALHOST else ())]
    if any(naive_match(rule, spelling, port, "deny") for rule in deny for spelling in spellings):
        return False
    asked = [host, "localhost"] if host in LOCALHOST else [host]
    return any(naive_match(rule, each, port, "allow") for rule in allow for each in asked)


LABELS = st.sampled_from(["a", "b", "ab", "x"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "test"]))
LOW = st.integers(0, 15)
IPV4 = LOW.map(lambda n: f"10.0.{n >> 2}.{n & 3}")
IPV6 = st.integers(1, 15).map(lambda n: f"fd00::{n:x}")
EMBEDDED = LOW.map(lambda n: f"64:ff9b::a00:{(n >> 2) << 8 | n & 3 | 0x100:x}")
HOSTS = st.one_of(NAMES, IPV4, IPV6, EMBEDDED, st.sampled_from(LOCALHOST))
PORTS = st.sampled_from([22, 80, 443, 8080])


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["name", "below", "v4", "v4net", "v6", "v6net", "any", *LOCALHOST]))
    port = draw(st.sampled_from(["", ":*", ":22", ":80", ":443"]))
    match kind:
        case "localhost" | "127.0.0.1":
            return kind + port
        case "::1":
            text = kind
        case "name":
            return draw(NAMES) + port
        case "below":
            return f"*.{draw(NAMES)}{port}"
        case "v4":
            return draw(IPV4) + port
        case "v4net":
            bits = draw(st.integers(20, 32))
            return str(ipaddress.ip_network(f"{draw(IPV4)}/{bits}", strict=False)) + port
        case "v6":
            text = draw(IPV6)
        case "v6net":
            text = str(ipaddress.ip_network(f"{draw(IPV6)}/{draw(st.integers(120, 128))}", strict=False))
        case _:
            return f"*{port}"
    return f"[{text}]{port}" if port else text


LISTS = st.lists(rule_texts(), max_size=8)


@given(LISTS, LISTS, HOSTS, PORTS)
def test_the_index_decides_as_a_naive_evaluator_does(allow: list[str], deny: list[str], host: str, port: int) -> None:
    verdict = Rules.build(allow, deny).decide(host, port)
    assert verdict.allow is naive_decide(allow, deny, host, port)
    if verdict.rule is not None:
        assert verdict.rule in {parse_rule(text, use="deny").text for text in (deny if not verdict.allow else allow)}


@given(LISTS, LISTS, LISTS, HOSTS, PORTS)
def test_more_denies_never_allow_more(allow: list[str], deny: list[str], more: list[str], host: str, port: int) -> None:
    assert (
        Rules.build(allow, deny).decide(host, port).allow
        or not Rules.build(allow, [*deny, *more]).decide(host, port).allow
    )


@given(LISTS, LISTS, HOSTS, PORTS, st.randoms())
def test_the_order_of_the_rules_does_not_matter(
    allow: list[str], deny: list[str], host: str, port: int, random: object
) -> None:
    assert Rules.build(allow, deny).decide(host, port).allow == (
        Rules.build(reversed(allow), reversed(deny)).decide(host, port).allow
    )


@given(st.text(max_size=40), st.sampled_from(["allow", "deny", "private"]))
def test_any_text_is_a_rule_or_a_policy_error_of_one_line(text: str, use: Use) -> None:
    try:
        rule = parse_rule(text, use=use)
    except PolicyError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert parse_rule(rule.text, use=use).text == rule.text


class CountingDict(dict[object, object]):
    """Counts look-ups: the cost of a decision, measured in what it does and not in time."""

    looked = 0

    def get(self, key: object, default: object = None) -> object:
        CountingDict.looked += 1
        return super().get(key, default)


def lookups(rules: Rules, host: str) -> int:
    index = rules._allows  # pyright: ignore[reportPrivateUsage]
    for table in ("name", "below", "net"):
        setattr(index, table, CountingDict(getattr(index, table)))
    CountingDict.looked = 0
    rules.decide(host, 443)
    return CountingDict.looked


@pytest.mark.parametrize("host", ["a.b.c.ex1.com", "nothing.like.it.example", "10.0.0.1", "fd00::1"])
def test_a_hundred_thousand_rules_cost_as_many_lookups_as_ten(host: str) -> None:
    def rules(count: int) -> Rules:
        names = [f"*.ex{i}.com" if i % 2 else f"www.ex{i}.com" for i in range(count)]
        nets = [f"{11 + i % 200}.{i // 200 % 250}.0.0/16" for i in range(count // 10)]
        return Rules.build([*names, *nets, "172.16.0.0/16", "[fd12::/16]:1"])

    few, many = lookups(rules(10), host), lookups(rules(100_000), host)
    assert 0 < many <= few
    assert many <= host.count(".") + 2


def test_a_verdict_is_the_same_when_it_is_asked_for_again_and_few_are_kept() -> None:
    rules = Rules.build(["*.a.test", "10.0.0.0/8"], ["h7.a.test"])
    hosts = [f"h{number}.a.test" for number in range(REMEMBERED + 100)] + ["10.1.2.3", "11.1.2.3", "x" * 1000, "a b"]
    first = [rules.decide(host, 443) for host in hosts]
    assert [rules.decide(host, 443) for host in hosts] == first
    assert [verdict.allow for verdict in first[6:9]] == [True, False, True]
    assert not rules.decide("h1.a.test", 22).allow and rules.decide("h1.a.test", 80).allow
    kept = vars(rules)["_memo"]
    assert len(kept) <= REMEMBERED and max(len(host) for host, _ in kept) < 300
    assert rules == Rules.build(["*.a.test", "10.0.0.0/8"], ["h7.a.test"]), "what is kept is no part of the value"
