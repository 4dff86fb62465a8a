"""The promises, each an id and a sentence: SECURITY.md prints them, tests carry the ids, `test_guarantees.py` compares.

An id stays as long as its sentence means the same; a sentence that is dropped takes its id with it.
"""

from __future__ import annotations

PROMISES: dict[str, str] = {
    "write": "The worker writes nowhere but its writable roots.",
    "net": "It reaches no network but what the policy lists.",
    "read": "It reads no secret it was not handed.",
    "daemon": "It speaks to no daemon of the host.",
    "gone": "It leaves nothing behind.",
    "start": "If any of that cannot be applied, the worker never starts.",
    "record": "What happened is on record.",
}

GUARANTEES: dict[str, str] = {
    "write-roots": "A file outside the writable roots is not created, changed, renamed, removed or given another mode.",
    "write-links": "A link in a writable root, made before or during the run, does not lead a write out of it.",
    "write-protected": "A protected path inside a writable root is read-only: `.git` and files that run by themselves.",
    "write-descriptors": "A file or folder the worker holds as stdin, stdout or stderr is no way to change the host's.",
    "write-kernel": "The host's kernel settings below `/proc/sys` and `/sys` are read-only, for root too.",
    "net-nothing": "With an empty allowlist nothing is reached, no name is resolved, and there is no route out.",
    "net-listed": "With domains listed, those are reached and no other host or port is, by the proxy or around it.",
    "net-deny": "A deny rule beats every allow rule; a host that has no one normal form is denied and never looked up.",
    "net-private": "A name that resolves to an address that is not global is denied unless the policy says it may.",
    "net-pinned": "A name is resolved only after it is allowed, and the address that was checked is the one dialled.",
    "net-requests": "On a connection that is kept alive, every request is decided again.",
    "net-toolchain": "A toolchain opens the registries the user's own tools name; nothing in the project adds to them.",
    "read-env": "The worker's environment is an allowlist.",
    "read-hidden": "Credential stores of the home and what the policy hides cannot be read or written, unless granted.",
    "daemon-sockets": "Unix sockets of the host, in the file system or abstract, cannot be connected to unless listed.",
    "daemon-processes": "Processes of the host cannot be seen, traced or signalled.",
    "daemon-memory": "System V and POSIX shared memory of the host cannot be seen.",
    "gone-processes": "No process outlives the run, however it or skep itself ends, SIGKILL included.",
    "gone-files": "Nothing is created in the user's tree but what the worker wrote: no mount point, no placeholder.",
    "start-refuses": "A boundary that cannot be applied is exit 125 and one line; the worker never ran.",
    "start-strict": "An unknown key, mode or malformed rule is an error before anything starts.",
    "start-attested": "The boundary is tried from inside just before the worker starts; a surprise stops it.",
    "record-layers": "The record says which layers were in force, and marks a run without the boundary.",
    "record-egress": "Every egress decision is recorded with its host, port and reason.",
    "record-chain": "The log is hash-chained: a changed, dropped or reordered event is found.",
    "record-apart": "The worker cannot write the record of its run.",
    "record-verdict": "A patch that failed its verification, or has none, is approved only by force, and recorded so.",
}
