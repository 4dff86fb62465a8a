"""Compiled launches: a few whole texts, and many by an evaluator that must agree with the boundary."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_bwrap import BackendUnavailable, HostFacts, compile, mounts
from skep_bwrap.compile import USUAL_PORTS
from skep_bwrap.mountinfo import Mount, parse
from skep_bwrap.mounts import destinations, filesystem_ops
from skep_bwrap.ops import Bind, Op, RemountReadOnly, Tmpfs, render
from skep_bwrap.seccomp import ARCHES, base_filter
from skep_policy import replace
from skep_policy.boundary import Access, Boundary, Limits, PathRule, below
from skep_policy.rules import Rules

from .boundaries import FACTS, HOME, REPO, boundary, hide, protect, root
from .evaluate import visible

PRIVATE = ("/proc", "/dev", "/tmp", "/var/tmp", "/run")


def ops_of(one: Boundary, facts: HostFacts = FACTS) -> list[Op]:
    return filesystem_ops(one, facts, own_names=False)


def text(one: Boundary, **how: object) -> str:
    launch = compile(one, ["make", "test"], facts=FACTS, bwrap="/usr/bin/bwrap", **how)  # type: ignore[arg-type]
    return " ".join(launch.args)


def test_the_whole_text_of_an_ordinary_launch() -> None:
    one = boundary(protects=[protect(f"{REPO}/.git")], hides=[hide(f"{HOME}/.ssh"), hide(f"{HOME}/.netrc", "file")])
    assert text(one).split(" --") == [
        "--unshare-user",
        "unshare-pid",
        "unshare-ipc",
        "unshare-uts",
        "unshare-cgroup-try",
        "unshare-net",
        "die-with-parent",
        "cap-drop ALL",
        "uid 0",
        "gid 0",
        "cap-add CAP_SETFCAP",
        "cap-add CAP_SYS_ADMIN",
        "ro-bind / /",
        "proc /proc",
        "dev /dev",
        "perms 1777",
        "tmpfs /dev/shm",
        "perms 1777",
        "tmpfs /tmp",
        "perms 1777",
        "tmpfs /var/tmp",
        "perms 0755",
        "tmpfs /run",
        "bind /home/u/repo /home/u/repo",
        "ro-bind /home/u/repo/.git /home/u/repo/.git",
        "ro-bind /usr/lib/python3/dist-packages/skep_netshim/shim.py /run/skep/netshim",
        "ro-bind /dev/null /run/skep/nothing",
        "perms 0000",
        "tmpfs /run/skep/void",
        "remount-ro /run/skep/void",
        "remount-ro /dev",
        "remount-ro /run",
        "seccomp {fd:seccomp}",
    ]
    launch = compile(one, ["make", "test"], facts=FACTS, bwrap="/usr/bin/bwrap")
    assert launch.config.startswith(b"cover=file /home/u/.netrc\0cover=dir /home/u/.ssh\0apart=1\0")


def test_what_the_shim_is_told_keeps_values_of_the_environment_out_of_the_evidence() -> None:
    launch = compile(boundary(env={"TOKEN": "hush"}), ["make"], facts=FACTS, bwrap="/b")
    assert b"env=TOKEN=hush\0" in launch.config and b"argv=make\0" in launch.config
    assert launch.config.endswith(b"\0\0")
    assert "hush" not in launch.evidence and "TOKEN" in launch.evidence
    assert not any("hush" in word or "make" in word for word in (*launch.argv, *launch.args))


def test_no_value_of_a_boundary_becomes_an_option_of_bwrap() -> None:
    launch = compile(boundary(), ["--bind", "/", "/"], facts=FACTS, bwrap="/b")
    assert launch.argv[launch.argv.index("--") + 1 :][:4] == (FACTS.interpreter, "-I", "-S", "/run/skep/netshim")
    assert launch.argv[:4] == ("/b", "--args", "{fd:args}", "--")


def test_filtered_egress_asks_for_the_capabilities_of_a_route_and_listeners_and_no_others() -> None:
    words = text(boundary(allow=["a.example.com"]), proxied=True)
    asked = {word for word in words.split() if word.startswith("CAP_")}
    assert asked == {"CAP_SETFCAP", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"}
    assert "/etc/resolv.conf" in words and "/etc/hosts" in words


def told(allow: list[str], **how: bool) -> list[str]:
    """The records of the shim for a boundary with a proxy."""
    launch = compile(boundary(allow=allow), ["x"], facts=FACTS, bwrap="/b", proxied=True, **how)
    return launch.config.decode().split("\0")


def test_names_are_answered_at_every_address_so_that_no_resolver_of_a_programs_own_is_missed() -> None:
    dns = [record for record in told(["a.example.com"]) if record.startswith("listen=dns")]
    assert dns == ["listen=dns 0.0.0.0 53", "listen=dns :: 53"]
    assert not any(record.startswith("listen=dns") for record in told(["a.example.com"], transparent=False))


def listening(key: str, *allow: str, **how: bool) -> list[str]:
    return [record.partition("=")[2] for record in told(list(allow), **how) if record.startswith(f"{key}=")]


def test_ports_that_rules_name_have_listeners_and_one_serves_all_where_the_kernel_can() -> None:
    dns = ["dns 0.0.0.0 53", "dns :: 53"]
    named = ["tcp 0.0.0.0 22", "tcp :: 22"]
    service = ["tcp 127.0.0.1 5432", "tcp ::1 5432"]
    every = ["every 0.0.0.0 1", "every :: 1"]
    proxy = ["proxy 127.0.0.1 3128"]
    allow = ("a.example.com:22", "localhost:5432")
    assert listening("listen", *allow) == [*proxy, *named, *service, *dns]
    assert listening("listen-every", *allow) == [*proxy, *every, *service, *dns]
    both = (*allow, "a.example.com:5432")
    wide = ["tcp 0.0.0.0 5432", "tcp :: 5432"]
    assert listening("listen", *both) == [*proxy, *named, *wide, *dns]
    assert listening("listen-every", *both) == [*proxy, *every, *wide, *dns]
    for network in ("127.0.0.0/8:5432", "127.5.0.0/16:5432"):
        assert listening("listen-every", network) == [*proxy, *every, *wide, *dns]
    assert listening("listen-every", "10.0.0.0/8:5432", "*:443") == [*proxy, *every, *dns]
    assert listening("listen-every", *allow, transparent=False) == []
    assert len(listening("listen", "a.example.com:*")) == 1 + 2 * len(USUAL_PORTS) + 2


def test_the_worker_never_starts_under_the_filter_that_lets_the_shim_set_up_nf_tables() -> None:
    own = base_filter(ARCHES[FACTS.machine])
    ways: tuple[dict[str, bool], ...] = ({}, {"transparent": False}, {"apart": False})
    for how in ways:
        launch = compile(boundary(allow=["a.example.com"]), ["x"], facts=FACTS, bwrap="/b", proxied=True, **how)
        added = f"filter={own.hex()}".encode() in launch.config.split(b"\0")
        assert added is (not how) and added is (launch.files["seccomp"] != own)
    assert compile(boundary(), ["x"], facts=FACTS, bwrap="/b").files["seccomp"] == own


def test_ssh_and_jvms_are_told_of_the_proxy_where_nothing_is_transparent() -> None:
    """What the compiler does not know yet, the shim finds out, and takes the other variables."""
    for how, key in (({"transparent": False}, "env="), ({"apart": False}, "env="), ({}, "explicit-env=")):
        records = told(["a.example.com:22"], **how)
        connect = f"{FACTS.interpreter} -I -S /run/skep/netshim --connect %h %p"
        assert f"{key}GIT_SSH_COMMAND=ssh -o ProxyCommand='{connect}'" in records
        assert f"{key}SKEP_PROXY_COMMAND={connect}" in records
        assert any(record.startswith(f"{key}JAVA_TOOL_OPTIONS=-Dhttp.proxyHost=") for record in records)
    assert not any(record.startswith(("env=GIT_SSH", "env=JAVA")) for record in told(["a.example.com:22"]))


def test_without_a_namespace_of_its_own_the_worker_is_the_caller_from_the_start() -> None:
    launch = compile(boundary(allow=["a.example.com"]), ["x"], facts=FACTS, bwrap="/b", proxied=True, apart=False)
    assert "--uid 1000 --gid 1000" in " ".join(launch.args) and "--cap-add" not in launch.args
    assert launch.layers["transparent"] is False and launch.layers["apart"] is not True


def test_an_open_network_is_not_unshared_and_a_filtered_one_needs_a_proxy() -> None:
    assert "--unshare-net" not in text(boundary(allow=["*"]))
    with pytest.raises(BackendUnavailable, match="no proxy"):
        text(boundary(allow=["a.example.com"]))


def test_a_machine_without_a_filter_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="riscv64"):
        compile(boundary(), ["x"], facts=replace(FACTS, machine="riscv64"), bwrap="/b")


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/sys", "/sys", "/sys/fs/cgroup", "/dev"])
def test_a_root_that_opens_the_kernel_is_refused_by_name(path: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"{path} cannot be a writable root"):
        ops_of(boundary(roots=[root(path)]))


def test_hiding_what_the_shim_runs_from_is_refused_by_name_and_hiding_what_is_above_it_is_not() -> None:
    facts = replace(FACTS, prefix=f"{HOME}/.py", interpreter=f"{HOME}/.py/bin/python3")
    with pytest.raises(BackendUnavailable, match="skep's own Python"):
        ops_of(boundary(hides=[hide(f"{HOME}/.py")]), facts)
    ops = ops_of(boundary(hides=[hide(HOME), hide(f"{HOME}/.py/secret")]), facts)
    assert visible(ops, f"{HOME}/.py/bin/python3").host == f"{HOME}/.py/bin/python3"
    assert visible(ops, f"{HOME}/.py/secret/f").host is None
    assert visible(ops, f"{HOME}/other").host is None


def test_what_skep_runs_from_is_not_writable_even_inside_a_root() -> None:
    facts = replace(FACTS, code=(f"{REPO}/.venv", f"{REPO}/src/skep_cli"))
    ops = ops_of(boundary(), facts)
    assert not visible(ops, f"{REPO}/.venv/lib/x.py").writable and not visible(ops, f"{REPO}/src/skep_cli/x").writable
    assert visible(ops, f"{REPO}/src/other").writable
    with pytest.raises(BackendUnavailable, match="skep itself"):
        ops_of(boundary(roots=[root(f"{REPO}/.venv")]), facts)


def test_the_shims_own_python_is_the_hosts_whatever_a_run_has_in_its_place() -> None:
    facts = replace(FACTS, prefix=f"{REPO}/.py", interpreter=f"{REPO}/.py/bin/python3", code=(f"{REPO}/.venv",))
    ops = ops_of(boundary(mapped={REPO: "/copy"}), facts)
    seen = visible(ops, f"{REPO}/.py/bin/python3")
    assert (seen.host, seen.writable) == (f"{REPO}/.py/bin/python3", False)
    of_the_run = visible(ops, f"{REPO}/.venv/x")
    assert (of_the_run.host, of_the_run.writable) == ("/copy/.venv/x", True)


def test_what_is_protected_or_hidden_is_so_at_every_other_mount_of_its_files() -> None:
    table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n24 22 8:1 /home/u /mnt/alias rw - ext4 /dev/sda1 rw\n"
    facts = replace(FACTS, mounts=parse(table))
    roots = [root(REPO), root("/mnt/alias")]
    ops = ops_of(boundary(roots=roots, protects=[protect(f"{REPO}/a/p")], hides=[hide(f"{HOME}/secret")]), facts)
    for folder in (REPO, "/mnt/alias/repo"):
        assert visible(ops, f"{folder}/a/f").writable and not visible(ops, f"{folder}/a/p/f").writable
        assert Bind(f"{folder}/a", f"{folder}/a", "rw") in ops  # and cannot be moved away
    assert visible(ops, "/mnt/alias/secret/f").host is None and visible(ops, "/mnt/alias/other").writable


def test_a_hide_beside_a_pinned_folder_is_not_covered_by_the_pin() -> None:
    one = boundary(protects=[protect(f"{REPO}/a/p")], hides=[hide(f"{REPO}/a/h"), hide(f"{REPO}/a/f", "file")])
    ops = ops_of(one)
    assert Bind(f"{REPO}/a", f"{REPO}/a", "rw") in ops
    assert visible(ops, f"{REPO}/a/h/secret").host is None and visible(ops, f"{REPO}/a/f").host is None


def test_folders_above_protects_and_hides_are_pinned_through_roots_within_roots() -> None:
    one = boundary(roots=[root(REPO), root(f"{REPO}/a/b")], hides=[hide(f"{REPO}/a/b/c/h")])
    pinned = {op.dest for op in ops_of(one) if isinstance(op, Bind) and op.mode == "rw"}
    assert pinned == {REPO, f"{REPO}/a", f"{REPO}/a/b", f"{REPO}/a/b/c"}


def test_a_hide_holds_at_every_place_where_the_host_has_mounted_the_same_files() -> None:
    mounts = (Mount("8:1", "/", "/", "ext4"), Mount("8:1", "/home", "/mnt/h", "ext4"), Mount("0:9", "/", "/x", "tmpfs"))
    ops = ops_of(boundary(hides=[hide(f"{HOME}/.ssh")]), replace(FACTS, mounts=mounts))
    assert visible(ops, "/mnt/h/u/.ssh/key").host is None
    assert visible(ops, "/mnt/h/u/other").host == "/mnt/h/u/other"


@pytest.mark.parametrize(
    ("socket", "covered"),
    [
        ("/srv/d.sock", True),
        ("/run/d.sock", False),  # /run is another one
        (f"{REPO}/d.sock", True),
        (f"{REPO}/p/d.sock", True),
        ("/tmp/ws/p/d.sock", True),
        ("/tmp/ws/d.sock", True),
        ("/tmp/d.sock", False),
        (f"{HOME}/.ssh/agent", False),
        ("/srv/let-in.sock", False),
    ],
)
def test_sockets_are_covered_where_they_would_be_seen(socket: str, covered: bool) -> None:
    one = boundary(
        roots=[root(REPO), root("/tmp/ws")],
        protects=[protect(f"{REPO}/p"), protect("/tmp/ws/p")],
        hides=[hide(f"{HOME}/.ssh")],
        sockets=["/srv/let-in.sock"],
    )
    ops = ops_of(one, replace(FACTS, sockets=(socket,)))
    assert (Bind("/dev/null", socket, "ro") in ops) == covered
    assert (visible(ops, socket).host == socket) == (socket == "/srv/let-in.sock")


def test_a_socket_in_a_mapped_copy_is_covered_where_the_worker_sees_it() -> None:
    one = boundary(mapped={REPO: "/state/copy"})
    ops = ops_of(one, replace(FACTS, sockets=("/state/copy/d.sock",)))
    assert visible(ops, f"{REPO}/d.sock").host is None and visible(ops, "/state/copy/d.sock").host is None
    assert visible(ops, f"{REPO}/f").host == "/state/copy/f"


def test_destinations_name_every_mount_point_below_a_root_as_the_host_sees_it() -> None:
    one = boundary(
        roots=[root(REPO), root(f"{REPO}/inner")], protects=[protect(f"{REPO}/a/p")], mapped={REPO: "/state/copy"}
    )
    found = set(destinations(ops_of(one), one))
    assert {
        ("/state/copy", "/state/copy/inner"),
        ("/state/copy", "/state/copy/a"),
        ("/state/copy", "/state/copy/a/p"),
    } == found


def test_memory_bounds_what_is_kept_in_memory() -> None:
    words = text(boundary(limits=Limits(memory=1 << 30)))
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        assert f"--size {1 << 30} --tmpfs {folder}" in words


def test_limits_a_process_carries() -> None:
    limits = Limits(memory=1 << 30, processes=64, file_size=1 << 20)

    def records(**how: bool) -> list[bytes]:
        config = compile(boundary(limits=limits), ["x"], facts=FACTS, bwrap="/b", **how).config
        return [record for record in config.split(b"\0") if record.startswith(b"rlimit=")]

    common = [b"rlimit=CORE 1", b"rlimit=FSIZE 1048576", b"rlimit=NPROC 64"]
    assert records(memory_rlimit=False) == common
    assert sorted(records(memory_rlimit=True)) == sorted([*common, b"rlimit=DATA 1073741824"])


def test_single_covers_are_left_to_the_shim_and_very_many_without_it_are_one_line_with_a_remedy() -> None:
    many = [hide(f"{REPO}/d{number % 50}/{number}", "file") for number in range(20_000)]
    one = boundary(hides=many, protects=[protect(f"{REPO}/kept", "file"), protect(f"{REPO}/folder")])
    launch = compile(one, ["x"], facts=FACTS, bwrap="/b")
    assert len(launch.args) < 200
    covers = [record for record in launch.config.split(b"\0") if record.startswith(b"cover=")]
    assert covers[0] == f"cover=pin {REPO}/d0".encode() and len(covers) == 50 + 20_000 + 1
    assert f"cover=keep {REPO}/kept".encode() in covers
    assert len(launch.destinations) == 20_000 + 50 + 2
    with pytest.raises(BackendUnavailable, match="too many single paths; hide or protect folders"):
        compile(one, ["x"], facts=FACTS, bwrap="/b", apart=False)


def test_a_cover_where_nothing_stands_is_bwraps_which_makes_the_place() -> None:
    hides = [hide(f"{folder}/d") for folder in ("/tmp/home", "/tmp/ws", HOME)]
    hides += [hide(f"{folder}/f", "file") for folder in ("/tmp/home", "/tmp/ws", HOME)]

    def divided(read: str) -> tuple[set[bytes], str]:
        one = boundary(workspace="/tmp/ws", roots=[root("/tmp/ws")], hides=hides, read=read)
        launch = compile(one, ["x"], facts=FACTS, bwrap="/b")
        records = launch.config.split(b"\0")
        return {record[6:] for record in records if record.startswith(b"cover=")}, " ".join(launch.args)

    covers, words = divided("host")
    assert covers == {f"{kind} {path}/{kind[0]}".encode() for kind in ("dir", "file") for path in ("/tmp/ws", HOME)}
    for made in ("--ro-bind /dev/null /tmp/home/f", "--tmpfs /tmp/home/d", "--remount-ro /tmp/home/d"):
        assert made in words
    covers, words = divided("minimal")
    assert covers == {b"dir /tmp/ws/d", b"file /tmp/ws/f"} and f"--tmpfs {HOME}/d" in words


@given(st.deferred(lambda: boundaries()))
def test_what_is_left_to_the_shim_lies_on_top_as_it_would_in_its_place(one: Boundary) -> None:
    ops = ops_of(one)
    kept, covers = mounts.divide(mounts.stages(one, FACTS, own_names=False), one)
    after: list[Op] = list(kept)
    for cover in covers:
        match cover.kind:
            case "pin":
                pass  # the same files at the same place
            case "file" | "dir" | "socket":
                after += [Tmpfs(cover.path, 0), RemountReadOnly(cover.path)]
            case "keep" | "knob":
                after.append(Bind(cover.path, cover.path, "ro"))
    for path in PATHS:
        assert (visible(after, path).host, visible(after, path).writable) == (
            visible(ops, path).host,
            visible(ops, path).writable,
        )


NAMES = ("a", "b", "c")


@st.composite
def boundaries(draw: st.DrawFn) -> Boundary:
    """Small trees with every kind of rule inside every other, as `resolve` may make them."""

    def path(least: int = 1) -> str:
        names = draw(st.lists(st.sampled_from(NAMES), min_size=least, max_size=3))
        return draw(st.sampled_from(["/home/u", "/srv", "/tmp", "/run", "/var/tmp"])) + "".join("/" + n for n in names)

    def some(kind: Access) -> list[PathRule]:
        paths = draw(st.lists(st.builds(path), max_size=4, unique=True))
        return [PathRule(one, kind, "dir") for one in paths]

    roots, hides = some(Access.WRITE), some(Access.HIDDEN)
    mapped = {rule.path: "/state" + rule.path for rule in roots[:1] if draw(st.booleans())}
    return boundary(
        roots=roots,
        protects=some(Access.READ),
        hides=[rule for rule in hides if rule.path not in {root.path for root in roots}],
        mapped=mapped,
        read=draw(st.sampled_from(["host", "minimal"])),
        reads=[PathRule("/usr", Access.READ, "dir"), PathRule("/srv", Access.READ, "dir")],
    )


def every_path() -> Iterable[str]:
    for base in ("/home/u", "/srv", "/usr"):
        level = [base]
        for _ in range(3):
            yield from level
            level = [f"{path}/{name}" for path in level for name in NAMES]


PATHS = list(every_path())


@given(boundaries())
def test_the_mounts_give_what_the_boundary_says(one: Boundary) -> None:
    ops = ops_of(one)
    # A root inside a protect loses to it, and inside a hide as well there is then nothing to show: less, never more.
    odd = any(below(root.path, rule.path) for root in one.roots for rule in one.protects)
    for path in PATHS:
        seen, access = visible(ops, path), one.access_to(path)
        found = Access.HIDDEN if seen.host is None else Access.WRITE if seen.writable else Access.READ
        assert found == access or (odd and found < access), path
        assert seen.host is not None or not seen.writable, path


@given(boundaries())
def test_what_a_root_shows_comes_from_its_own_folder(one: Boundary) -> None:
    ops = ops_of(one)
    for rule in one.roots:
        if one.access_to(rule.path) == Access.WRITE:
            source = next(
                (one.mapped[seen] + rule.path[len(seen) :] for seen in one.mapped if below(rule.path, seen)), rule.path
            )
            assert visible(ops, rule.path).host == source


@given(boundaries())
def test_no_folder_on_the_way_to_a_protect_or_hide_can_be_moved(one: Boundary) -> None:
    points = {op.dest for op in ops_of(one)}
    for rule in (*one.protects, *one.hides):
        folder = rule.path
        while one.access_to(rule.path) == rule.access and (folder := folder.rpartition("/")[0]):
            assert folder in points or one.access_to(folder) != Access.WRITE


@given(boundaries())
def test_the_same_boundary_gives_the_same_bytes_however_its_rules_are_ordered(one: Boundary) -> None:
    turned = replace(
        one, roots=one.roots[::-1], protects=one.protects[::-1], hides=one.hides[::-1], reads=one.reads[::-1]
    )
    assert render(ops_of(one)) == render(ops_of(turned))


@given(boundaries(), st.lists(st.sampled_from(PATHS), max_size=6))
def test_no_socket_of_the_host_is_seen_unless_let_in(one: Boundary, sockets: list[str]) -> None:
    ops = ops_of(one, replace(FACTS, sockets=tuple(sorted(set(sockets)))))
    for path in (*PATHS, *sockets):
        assert visible(ops, path).host not in sockets


def test_rules_of_the_network_do_not_touch_the_mounts() -> None:
    assert ops_of(boundary()) == ops_of(boundary(rules=Rules.build(["a.example.com"])))


def test_system_files_of_ssh_belong_to_an_ordinary_worker() -> None:
    """Root's files are nobody's in its user namespace, and ssh runs on no one else's."""
    path = "/etc/ssh/ssh_config.d/50-site.conf"
    facts = replace(FACTS, ssh={path: b"Host *\n"})
    launch = compile(boundary(), ["x"], facts=facts, bwrap="/b")
    assert f"--ro-bind-data {{fd:ssh0}} {path}" in " ".join(launch.args) and launch.files["ssh0"] == b"Host *\n"
    hidden = compile(boundary(hides=[hide("/etc/ssh")]), ["x"], facts=facts, bwrap="/b")
    root_s = compile(boundary(uid=0), ["x"], facts=facts, bwrap="/b")
    assert path not in hidden.args and path not in root_s.args


@pytest.mark.parametrize("where", ["argv", "env"])
def test_a_nul_tells_the_shim_nothing(where: str) -> None:
    words, env = ("x\0network=open", {}) if where == "argv" else ("x", {"A": "x\0network=open"})
    with pytest.raises(BackendUnavailable, match="NUL"):
        compile(replace(boundary(), env=env), [words], facts=FACTS, bwrap="/usr/bin/bwrap")
    assert (
        b"argv=x network=open\0" in compile(boundary(), ["x network=open"], facts=FACTS, bwrap="/usr/bin/bwrap").config
    )


@pytest.mark.parametrize("argv", ["true", []], ids=["a text", "nothing"])
def test_an_argv_that_is_no_list_of_words_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="the program and its arguments"):
        compile(boundary(), argv, facts=FACTS, bwrap="/usr/bin/bwrap")
    assert compile(boundary(), ["true"], facts=FACTS, bwrap="/usr/bin/bwrap")
