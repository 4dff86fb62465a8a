"""What a profile lets through and what not, by subject. Every denial stands beside something that is allowed."""

from __future__ import annotations

from itertools import product

import pytest
from skep_seatbelt import services
from skep_seatbelt.channels import MARKER
from skep_seatbelt.evaluate import Profile, Query, Reading
from skep_seatbelt.profile import GROUND, GUARDED_GROUND
from skep_seatbelt.sockets import parse_netstat

from .boundaries import HOME, REPO, SCRATCH, TAG, boundary, hide, profile, protect, root


def reaches(one: Profile, host: str, port: int) -> bool:
    return one.decide(Query("network-outbound", remote=(host, port))).allow


def listens(one: Profile, host: str, port: int) -> bool:
    query = Query("network-bind", local=(host, port))
    return one.decide(query).allow and one.decide(Query("network-inbound", local=(host, port))).allow


# files


def test_short_spellings_of_links_are_replaced():
    one = profile(boundary(roots=[root("/tmp/ws")], hides=(hide("/var/db/secret"), hide("/etc/secret"))))
    assert one.allows("file-write-create", "/private/tmp/ws/f")
    assert not one.allows("file-read-data", "/private/var/db/secret")
    assert not one.allows("file-read-data", "/private/etc/secret/f")
    assert one.allows("file-read-data", "/private/etc/hosts")


def test_both_names_of_a_firmlinked_folder_are_denied():
    one = profile(boundary(hides=(hide(f"{HOME}/.ssh"),), protects=(protect(f"{REPO}/.git"),)))
    for prefix in ("", "/System/Volumes/Data"):
        assert not one.allows("file-read-data", f"{prefix}{HOME}/.ssh/id")
        assert not one.allows("file-write-data", f"{prefix}{REPO}/.git/config")
        assert one.allows("file-write-data", f"{prefix}{REPO}/f")


@pytest.mark.parametrize("kind", ["file", "dir", "absent"])
def test_a_hidden_path_gives_and_takes_nothing(kind: str):
    one = profile(boundary(hides=(hide(f"{REPO}/secret", kind),)))
    for operation in (
        "file-read-data",
        "file-read-metadata",
        "file-read-xattr",
        "file-write-create",
        "file-write-unlink",
    ):
        for end in ("", "/..namedfork/rsrc"):
            assert not one.allows(operation, f"{REPO}/secret{end}")
        assert one.allows(operation, f"{REPO}/open")


def test_no_new_name_for_an_existing_file():
    one = profile(boundary())
    for operation in ("file-link", "file-clone"):
        assert not one.allows(operation, f"{REPO}/f") and not one.allows(operation, "/Users/u/other")
    assert one.allows("file-write-create", f"{REPO}/f")


def test_roots_and_folders_above_a_protected_path_keep_their_names():
    one = profile(boundary(protects=(protect(f"{REPO}/a/b/.git"),), hides=(hide(f"{REPO}/x/secret", "file"),)))
    for path in (REPO, SCRATCH, f"{REPO}/a", f"{REPO}/a/b", f"{REPO}/x"):
        assert not one.allows("file-write-unlink", path)
    for path in (f"{REPO}/c", f"{REPO}/a/c", f"{REPO}/a/b/f"):
        assert one.allows("file-write-unlink", path)
    assert one.allows("file-write-create", f"{REPO}/a/new")


@pytest.mark.parametrize("name", [".VSCODE", ".vScode", ".v\u017fcode", ".VSCODE/x"])
def test_an_absent_protected_name_is_protected_in_every_case(name: str):
    one = profile(boundary(protects=(protect(f"{REPO}/.vscode", "absent"),)))
    assert not one.allows("file-write-create", f"{REPO}/{name}")
    for other in (".vscodes", "x.vscode", "src/.vscodex", ".vcode"):
        assert one.allows("file-write-create", f"{REPO}/{other}")


@pytest.mark.parametrize(
    ("name", "variant", "other"),
    [
        (".gitconfig", ".gitcon\ufb01g", ".gitcong"),
        (".gitconfig", ".GITCON\ufb01G", ".gitconig"),
        ("office", "o\ufb03ce", "oice"),
        ("fflags", "\ufb00lags", "lags"),
        ("assets", "a\u00dfets", "aets"),
        ("state", "\ufb06ate", "ate"),
        (".git", ".g\u200cit", ".gt"),
        (".git", "\ufeff.git\u200d", "git"),
        ("a/.git", "a\u200c/.git", "b/.git"),
    ],
)
def test_an_absent_protected_name_is_protected_with_joined_letters_and_unseen_ones(name: str, variant: str, other: str):
    one = profile(boundary(protects=(protect(f"{REPO}/{name}", "absent"),)))
    for made in (name, variant, f"{variant}/inside"):
        assert not one.allows("file-write-create", f"{REPO}/{made}"), made
    assert one.allows("file-write-create", f"{REPO}/{other}")


def test_an_absent_protected_name_is_protected_composed_and_decomposed():
    for name in ("caf\u00e9", "cafe\u0301"):
        one = profile(boundary(protects=(protect(f"{REPO}/{name}", "absent"),)))
        for variant in ("caf\u00e9", "cafe\u0301", "CAF\u00c9"):
            assert not one.allows("file-write-create", f"{REPO}/{variant}")
        assert one.allows("file-write-create", f"{REPO}/cafe")


def test_a_root_inside_a_hidden_folder_is_reachable_and_its_neighbours_are_not():
    one = profile(boundary(roots=[root(f"{HOME}/work/deep/repo")], hides=(hide(f"{HOME}/work"),)))
    assert one.allows("file-write-create", f"{HOME}/work/deep/repo/f")
    assert not one.allows("file-read-data", f"{HOME}/work/deep/other")
    for folder in (f"{HOME}/work", f"{HOME}/work/deep"):
        assert one.allows("file-read-metadata", folder)
        assert not one.allows("file-read-data", folder)
    assert not one.allows("file-read-metadata", f"{HOME}/work/deep/other")


def test_set_id_bits_are_refused_where_modes_are_not():
    one = profile(boundary())
    assert not one.allows("file-write-setugid", f"{REPO}/f")
    assert one.allows("file-write-mode", f"{REPO}/f")


def test_minimal_reads_the_system_and_the_roots_and_looks_through_folders():
    one = profile(boundary(read="minimal", reads=(protect("/Users/u/.cargo"),)))
    for path in (f"{REPO}/f", "/usr/lib/dyld", "/System/Library/x", "/Users/u/.cargo/bin/cargo", "/"):
        assert one.allows("file-read-data", path)
    for path in ("/Users/u/other", "/System/Volumes/Data/Users/u/other", "/private/var/db/other"):
        assert not one.allows("file-read-data", path)
    assert one.allows("file-read-metadata", "/Users/u", vnode_type="DIRECTORY")
    assert not one.allows("file-read-data", "/Users/u", vnode_type="DIRECTORY")
    assert not one.allows("file-read-metadata", "/Users/u/f", vnode_type="REGULAR-FILE")


@pytest.mark.parametrize("folder", ["/System", "/System/Volumes", "/System/Volumes/Data"])
def test_a_readable_folder_above_the_data_volume_is_meant_without_it(folder: str):
    one = profile(boundary(read="minimal", reads=(protect(folder),)))
    assert not one.allows("file-read-data", "/System/Volumes/Data/Users/u/other")
    assert one.allows("file-read-data", f"/System/Volumes/Data{REPO}/f")
    assert one.allows("file-read-data", "/System/Library/x")


# devices


def test_devices_everybody_writes_and_no_others():
    one = profile(boundary(devices=("/dev/cu.usbmodem1",)), terminal="/dev/ttys042")
    for path in ("/dev/null", "/dev/zero", "/dev/fd/3", "/dev/tty", "/dev/ptmx", "/dev/ttys042", "/dev/cu.usbmodem1"):
        assert one.allows("file-write-data", path), path
    for path in ("/dev/disk0", "/dev/bpf0", "/dev/ttys001", "/dev/cu.usbmodem2", "/dev/nullx"):
        for operation in ("file-write-data", "file-read-data", "file-ioctl"):
            assert not one.allows(operation, path), path
    for path in ("/dev", "/dev/stdin", "/dev/urandom", "/dev/fd/0", "/dev/cu.usbmodem1"):
        assert one.allows("file-read-data", path) and one.allows("file-ioctl", path), path
    assert one.allows("file-read-metadata", "/dev/disk0")


def test_the_users_terminals_cannot_be_typed_on():
    one = profile(boundary(), terminal="/dev/ttys042")
    for operation in ("file-ioctl", "file-read-data", "file-write-data"):
        assert not one.allows(operation, "/dev/ttys001")
        assert one.allows(operation, "/dev/ttys042")
        assert one.allows(operation, "/dev/ttys077", extension="com.apple.sandbox.pty")


# network


def test_no_network_is_nothing_at_all():
    one = profile(boundary(), proxy=None)
    for host, port in (("localhost", 80), ("192.0.2.1", 443), ("localhost", 3128)):
        assert not reaches(one, host, port) and not listens(one, host, port)
    assert not one.allows("network-outbound", "/private/var/run/mDNSResponder")
    assert one.allows("network-outbound", f"{REPO}/socket")


def test_domains_are_reached_by_the_proxy_and_by_nothing_else():
    one = profile(boundary(allow=["example.com"]))
    assert reaches(one, "localhost", 3128)
    for host, port in (("localhost", 3129), ("192.0.2.1", 443), ("192.0.2.1", 3128)):
        assert not reaches(one, host, port)
    assert not listens(one, "localhost", 8000)
    assert not one.allows("mach-lookup", global_name="com.apple.dnssd.service")


def test_a_loopback_service_is_that_port():
    one = profile(boundary(allow=["localhost:5432", "127.0.0.1:6379"]))
    assert reaches(one, "localhost", 5432) and reaches(one, "localhost", 6379)
    assert not reaches(one, "localhost", 5433) and not reaches(one, "192.0.2.1", 5432)
    assert not listens(one, "localhost", 5432)


@pytest.mark.parametrize("deny", ["localhost:5432", "127.0.0.1:5432", "[::1]:5432", "localhost", "127.0.0.0/8"])
def test_a_denied_loopback_service_is_not_reached_under_any_of_its_names(deny: str):
    one = profile(boundary(allow=["localhost:5432", "127.0.0.1:6379", "example.com"], deny=[deny]))
    assert not reaches(one, "localhost", 5432)
    assert reaches(one, "localhost", 3128)


def test_localhost_star_opens_the_loopback_but_for_denied_ports():
    one = profile(boundary(allow=["localhost:*"], deny=["localhost:6379"]))
    assert reaches(one, "localhost", 1234)
    assert not reaches(one, "localhost", 6379)
    assert not reaches(one, "192.0.2.1", 1234) and not listens(one, "localhost", 1234)
    assert not reaches(profile(boundary(allow=["localhost:*"], deny=["localhost"])), "localhost", 1234)


def test_servers_inside_are_the_operators_word_alone():
    one = boundary(allow=["localhost:*"])
    assert listens(profile(one, listen=True), "localhost", 1234) and not listens(profile(one), "localhost", 1234)
    assert not reaches(profile(boundary(), proxy=None, listen=True), "localhost", 1234)


def test_everything_allowed_is_every_host_and_still_no_foreign_socket():
    one = profile(boundary(allow=["*"]), proxy=None)
    assert reaches(one, "192.0.2.1", 443) and listens(one, "localhost", 80)
    assert one.allows("network-outbound", "/private/var/run/mDNSResponder")
    assert not one.allows("network-outbound", "/private/var/run/docker.sock")


def test_unix_sockets_below_the_roots_and_those_named():
    granted = "/private/tmp/.s.PGSQL.5432"
    one = profile(boundary(sockets=(granted,), protects=(protect(f"{REPO}/.git"),)))
    for path in (granted, f"{REPO}/s", f"{SCRATCH}/s"):
        assert one.allows("network-outbound", path)
    for path in (
        *("/private/var/run/docker.sock", "/private/tmp/com.apple.launchd.x/Listeners", f"{HOME}/.ssh/agent/s"),
        *(f"{HOME}/.docker/run/docker.sock", f"{REPO}/.git/fsmonitor--daemon.ipc"),
    ):
        assert not one.allows("network-outbound", path)
    assert one.allows("network-bind", f"{REPO}/s") and not one.allows("network-bind", f"{REPO}/.git/s")
    assert not one.allows("network-bind", granted)


def test_a_named_socket_inside_a_protected_folder_is_reached():
    path = f"{REPO}/.git/fsmonitor--daemon.ipc"
    one = profile(boundary(sockets=(path,), protects=(protect(f"{REPO}/.git"),)))
    assert one.allows("network-outbound", path) and not one.allows("file-write-data", path)


def test_a_host_program_that_listens_inside_a_root_is_not_reached_unless_named():
    path = f"{REPO}/host.sock"
    one = profile(boundary(), host_sockets=[path, "/private/var/run/docker.sock"])
    assert not one.allows("network-outbound", path) and one.allows("network-outbound", f"{REPO}/own.sock")
    assert profile(boundary(sockets=(path,)), host_sockets=[path]).allows("network-outbound", path)


def test_bound_sockets_are_read_from_netstat():
    column = "2bd1d9c5e2f2fa73                0                0"
    table = "\n".join(
        (
            "Active LOCAL (UNIX) domain sockets",
            "Address          Type   Recv-Q Send-Q            Inode             Conn             Refs     Nextref Addr",
            f"2bd1d9c5e2f2f9ab stream      0      0                0 {column}",
            f"2bd1d9c5e2f2fa73 stream      0      0 2bd1d9c5e2f20001 {column} /Users/u/a b/.git/fsmonitor--daemon.ipc",
            f"2bd1d9c5e2f2fb3b dgram       0      0                0 {column} /var/run/syslog",
            "noise",
        )
    )
    assert parse_netstat(table) == ("/Users/u/a b/.git/fsmonitor--daemon.ipc", "/var/run/syslog")
    assert parse_netstat("") == ()


def test_strict_has_no_sockets_of_its_own():
    one = profile(boundary(strict=True, sockets=("/private/tmp/s",)))
    assert not one.allows("network-outbound", f"{REPO}/s")
    assert one.allows("network-outbound", "/private/tmp/s")


# services and processes


@pytest.mark.parametrize("name", [*services.FORBIDDEN, *services.HINTS, "com.example.anything", MARKER + "other"])
def test_services_that_act_for_a_caller_cannot_be_looked_up(name: str):
    one = profile(boundary(allow=["example.com"]))
    assert not one.allows("mach-lookup", global_name=name)
    assert not one.allows("mach-lookup", local_name=name)
    assert not one.allows("mach-register", global_name=name)


def test_services_that_programs_need_can_be_looked_up():
    one = profile(boundary())
    for name in (*services.BASE, MARKER + TAG):
        assert one.allows("mach-lookup", global_name=name)
    assert not one.allows("mach-lookup", global_name=MARKER + TAG + "x")


def test_certificates_are_checked_by_the_system_only_when_every_host_is_allowed_or_it_is_granted():
    name = "com.apple.trustd.agent"
    assert not profile(boundary(allow=["example.com"])).allows("mach-lookup", global_name=name)
    assert profile(boundary(allow=["*"]), proxy=None).allows("mach-lookup", global_name=name)
    assert profile(boundary(allow=["example.com"]), services=[name]).allows("mach-lookup", global_name=name)


def test_signals_and_inspection_stay_within_the_run():
    one = profile(boundary())
    for operation in ("signal", "process-info-pidinfo", "mach-priv-task-port", "mach-task-read"):
        assert not one.allows(operation)
        assert one.allows(operation, target="same-sandbox")
    for name in ("kern.procargs2", "kern.procargs2.77", "kern.proc.all", "kern.tty.x"):
        assert not one.allows("sysctl-read", sysctl_name=name)
    for name in ("hw.ncpu", "kern.osversion", "net.routetable.0"):
        assert one.allows("sysctl-read", sysctl_name=name)


def test_preferences_of_other_programs_are_not_read_for_a_worker():
    one = profile(boundary())
    assert one.allows("user-preference-read", preference_domain="kCFPreferencesAnyApplication")
    assert not one.allows("user-preference-read", preference_domain="com.example.app")
    assert not one.allows("user-preference-write", preference_domain="kCFPreferencesAnyApplication")


@pytest.mark.parametrize("operation", ["file-mount", "file-unmount", "file-write-mount", "file-write-unmount"])
def test_nothing_is_mounted_in_a_root_under_any_name_of_the_operation(operation: str):
    one = profile(boundary())
    assert not one.allows(operation, f"{REPO}/here") and one.allows("file-write-create", f"{REPO}/here")


def test_a_network_beside_the_sockets_is_there_with_every_host_only():
    assert profile(boundary(allow=["*"]), proxy=None).allows("necp-client-open")
    assert not profile(boundary(allow=["example.com"])).allows("necp-client-open")


def test_no_kernel_driver_is_opened():
    one = profile(boundary())
    for name in ("RootDomainUserClient", "IOSurfaceRootUserClient", "AGXDeviceUserClient"):
        assert not one.allows("iokit-open", iokit_registry_entry_class=name)
    assert one.allows("iokit-get-properties")


def test_shared_memory_of_the_host_is_out_of_reach():
    one = profile(boundary())
    assert not one.allows("ipc-posix-shm-write-data", ipc_posix_name="/PostgreSQL.123")
    assert not one.allows("ipc-sysv-shm")
    assert one.allows("ipc-posix-shm-write-data", ipc_posix_name="/psm_1234")
    assert one.allows("ipc-posix-sem-open", ipc_posix_name="/mp-1234")


@pytest.mark.parametrize(
    "operation", ["process-fork", "process-exec", "file-ioctl", "file-map-executable", "pseudo-tty"]
)
def test_ordinary_work_is_untouched(operation: str):
    assert profile(boundary()).allows(operation, f"{REPO}/f")


@pytest.mark.parametrize(("operation", "reading"), [*product((*GROUND, *GUARDED_GROUND), Reading)])
def test_the_ground_is_denied_under_every_reading(operation: str, reading: Reading):
    one = profile(boundary(), proxy=None)
    assert not one.decide(Query(operation), reading=reading).allow


def test_an_older_system_without_the_guarded_operations_takes_the_profile():
    one = profile(
        boundary(), unknown=frozenset((*GUARDED_GROUND, "iokit-open", "ipc-posix-shm-read*", "iokit-get-properties"))
    )
    assert one.allows("file-write-create", f"{REPO}/f") and not one.allows("file-write-create", f"{HOME}/f")
