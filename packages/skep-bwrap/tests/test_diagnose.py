"""Last words of bwrap, as real hosts have printed them, each with what it means and what fixes it."""

from __future__ import annotations

import pytest
from skep_bwrap.diagnose import CAUSES, classify

TEXTS = [
    ("bwrap: Unknown option --args", "bwrap-version", "bundled"),
    ("bwrap: Exceeded maximum number of arguments 9000", "arguments", "folders"),
    ("bwrap: setting up uid map: Permission denied", "apparmor", "apparmor_restrict_unprivileged_userns=0"),
    ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "apparmor", "AppArmor profile"),
    ("bwrap: setting up uid map: Operation not permitted", "nested-root", "ordinary user"),
    ("bwrap: Creating new namespace failed: Operation not permitted", "user-namespaces", "seccomp=unconfined"),
    (
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged "
            "user namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
        ),
        "user-namespaces",
        "kernel.unprivileged_userns_clone=1",
    ),
    (
        "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
        "user-namespaces",
        "user.max_user_namespaces",
    ),
    (
        (
            "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  bwrap "
            "must be installed setuid on such systems."
        ),
        "user-namespaces",
        "CONFIG_USER_NS",
    ),
    ("bwrap: Unexpected capabilities but not setuid, old file caps config?", "bwrap-setuid", "setcap -r"),
    ("bwrap: Failed to make / slave: Permission denied", "container-apparmor", "apparmor=unconfined"),
    ("bwrap: Failed to mount tmpfs: Operation not permitted", "container-apparmor", "apparmor=unconfined"),
    ("bwrap: pivot_root: Operation not permitted", "container-apparmor", "apparmor=unconfined"),
    ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "masked-proc", "systempaths=unconfined"),
    ("bwrap: prctl(PR_SET_SECCOMP): Invalid argument", "seccomp", "CONFIG_SECCOMP_FILTER"),
    ("bwrap: execvp /home/u/.py/bin/python3: No such file or directory", "interpreter", "install Python outside"),
    ("Fatal Python error: init_fs_encoding: failed to get the Python codec", "interpreter", "install Python outside"),
    ("bwrap: Can't find source path /home/u/repo: Permission denied", "closed-folder", "sudo -u"),
    ("bwrap: Can't find source path /srv/gone: No such file or directory", "mount", "policy show"),
    ("bwrap: Can't create file at /srv/x: Read-only file system", "mount", "policy show"),
]


@pytest.mark.parametrize(("text", "check", "fix"), TEXTS, ids=[f"{check}-{text[:40]}" for text, check, _ in TEXTS])
def test_a_real_text_is_recognised_with_its_fix(text: str, check: str, fix: str) -> None:
    error = classify(text + "\n", 1)
    assert error.check == check
    assert fix in error.fix
    assert text.split()[-1] in str(error) and "\n" not in str(error)


def test_every_cause_has_a_text() -> None:
    assert {cause.check for cause in CAUSES} == {check for _, check, _ in TEXTS}


@pytest.mark.parametrize(
    ("sysctls", "words"),
    [
        ({"kernel.unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone is 0"),
        ({"user.max_user_namespaces": "0"}, "user.max_user_namespaces is 0"),
        ({"kernel.apparmor_restrict_unprivileged_userns": "1"}, "apparmor_restrict_unprivileged_userns is 1"),
        ({"user.max_user_namespaces": "96364"}, "refuses a new user namespace"),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_named(sysctls: dict[str, str], words: str) -> None:
    error = classify("bwrap: Creating new namespace failed: Operation not permitted", 1, sysctls)
    assert words in error.problem


def test_a_path_that_reads_like_another_failure_does_not_mislead() -> None:
    error = classify("bwrap: Can't find source path /home/u/setuid-demo: No such file or directory", 1)
    assert error.check == "mount"


def test_an_unknown_text_is_passed_on_and_cut() -> None:
    error = classify("something new " * 1000, 1)
    assert "something new" in str(error) and len(str(error)) < 1000 and "another bwrap" in error.fix
    assert "signal 9" in str(classify("", 137))
