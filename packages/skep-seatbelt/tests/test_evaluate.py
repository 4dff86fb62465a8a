"""The evaluator knows the precedence that public profiles rely on. Every profile here is of our own making."""

from __future__ import annotations

import pytest
from skep_seatbelt.evaluate import Profile, Query, Reading, classes
from skep_seatbelt.reader import UnreadableProfile


def allows(rules: str, operation: str, path: str | None = None, **names: str) -> bool:
    return Profile("(version 1)" + rules).allows(operation, path, **names)


def test_last_filtered_rule_wins():
    rules = '(allow file-read* (subpath "/a")) (deny file-read* (subpath "/a/b")) (allow file-read* (subpath "/a/b/c"))'
    assert allows(rules, "file-read*", "/a/x")
    assert not allows(rules, "file-read*", "/a/b/x")
    assert allows(rules, "file-read*", "/a/b/c")


@pytest.mark.parametrize(
    "rules",
    [
        '(allow file-write* (subpath "/a")) (deny file-write*) (allow default)',
        '(allow default) (deny file-write*) (allow file-write* (subpath "/a"))',
    ],
    ids=["allowances first", "allowances last"],
)
def test_an_unfiltered_rule_never_overrides_a_filtered_one(rules: str):
    assert allows(rules, "file-write-data", "/a/x")
    assert not allows(rules, "file-write-data", "/b")
    assert allows(rules, "file-read-data", "/b")


def test_a_narrow_operation_beats_its_class():
    rules = '(allow file-read-metadata) (deny file-read* (subpath "/a"))'
    assert allows(rules, "file-read-metadata", "/a/x")
    assert not allows(rules, "file-read-data", "/a/x")
    rules += ' (deny file-read-metadata (subpath "/a"))'
    assert not allows(rules, "file-read-metadata", "/a/x")


def test_nothing_said_is_denied():
    assert not allows("", "file-read*", "/a")
    assert allows("(allow default)", "anything-at-all")


def test_subpath_is_a_folder_and_not_a_prefix():
    rules = '(allow file-read* (subpath "/a/b"))'
    assert allows(rules, "file-read*", "/a/b") and allows(rules, "file-read*", "/a/b/c")
    assert not allows(rules, "file-read*", "/a/bc")


def test_classes_go_from_narrow_to_wide():
    assert classes("ipc-posix-shm-read-data") == [
        "ipc-posix-shm-read-data",
        *("ipc-posix-shm-read-data*", "ipc-posix-shm-read*", "ipc-posix-shm*", "ipc-posix*", "ipc*", "default"),
    ]
    assert classes("file*") == ["file*", "default"]


def test_sockets_match_by_end_host_and_port():
    profile = Profile('(version 1)(allow network-outbound (remote ip "localhost:80"))')

    def reaches(host: str, port: int) -> bool:
        return profile.decide(Query("network-outbound", remote=(host, port))).allow

    assert reaches("localhost", 80)
    assert not reaches("localhost", 81) and not reaches("192.0.2.1", 80)
    assert not profile.decide(Query("network-outbound", local=("localhost", 80))).allow
    assert not profile.decide(Query("network-outbound", path="/a/socket")).allow


def test_localhost_is_every_address_of_the_machine_in_a_local_filter():
    profile = Profile('(version 1)(allow network-bind (local ip "localhost:80"))')
    assert profile.decide(Query("network-bind", local=("192.0.2.7", 80))).allow
    assert not profile.decide(Query("network-bind", local=("192.0.2.7", 81))).allow


@pytest.mark.parametrize(
    "rules",
    [
        *('(allow network-outbound (remote ip "127.0.0.1:80"))', '(allow file-read* (regex #"(?:a)"))'),
        *('(allow file-read* (unheard-of "x"))', "(allow)", '(permit file-read* (literal "/"))', "(allow default"),
        *("allow", '(allow file-read* (literal "/a))', "(allow default))", r'(allow file-read* (literal "\n"))'),
        "(if (defined? 'x) (allow default) (deny default))",
    ],
)
def test_what_the_system_would_refuse_or_ignore_is_refused(rules: str):
    def judge() -> None:
        profile = Profile("(version 1)" + rules)
        profile.decide(Query("network-outbound", remote=("localhost", 80)))
        profile.decide(Query("file-read*", "/a"))

    with pytest.raises(UnreadableProfile):
        judge()


def test_the_flat_reading_disagrees_where_the_order_is_unusual():
    text = '(version 1)(allow file-write* (subpath "/a"))(deny file-write*)'
    query = Query("file-write-data", "/a/x")
    assert Profile(text).decide(query).allow
    assert not Profile(text).decide(query, reading=Reading.FLAT).allow
