"""A Go module proxy and a cargo registry, each with one package, and the distribution's Maven repository, as files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GO_MODULE = "skep.test/demo"
CRATE = "skepdemo"
DEBIAN_MAVEN = Path("/usr/share/maven-repo")
"""Where packages of Debian and Ubuntu put what Maven would download, plugins included."""


def go_proxy(prefix: str) -> dict[str, bytes]:
    """What a module proxy at `prefix` serves (Go, "GOPROXY protocol")."""
    at = f"{prefix}/{GO_MODULE}/@v"
    files = {
        "go.mod": f"module {GO_MODULE}\n\ngo 1.18\n",
        "demo.go": "package demo\n\nfunc Answer() int { return 42 }\n",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{GO_MODULE}@v1.0.0/{name}", text)
    info = json.dumps({"Version": "v1.0.0", "Time": "2020-01-01T00:00:00Z"}).encode()
    return {
        f"{at}/list": b"v1.0.0\n",
        f"{at}/v1.0.0.info": info,
        f"{at}/v1.0.0.mod": files["go.mod"].encode(),
        f"{at}/v1.0.0.zip": buffer.getvalue(),
    }


def cargo_registry(prefix: str, base: str) -> dict[str, bytes]:
    """What a sparse index at `prefix` of the server `base` serves, and the crate (cargo, "Registry index format")."""
    files = {
        "Cargo.toml": f'[package]\nname = "{CRATE}"\nversion = "1.0.0"\nedition = "2021"\n',
        "src/lib.rs": "pub fn answer() -> i32 { 42 }\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{CRATE}-1.0.0/{name}")
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    crate = buffer.getvalue()
    line: dict[str, Any] = {"name": CRATE, "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    line["cksum"] = hashlib.sha256(crate).hexdigest()
    return {
        f"{prefix}/config.json": json.dumps({"dl": f"{base}{prefix}/crates"}).encode(),
        f"{prefix}/{CRATE[:2]}/{CRATE[2:4]}/{CRATE}": json.dumps(line).encode() + b"\n",
        f"{prefix}/crates/{CRATE}/1.0.0/download": crate,
    }


class MavenRepository(Mapping[str, bytes]):
    """The distribution's artifacts at `prefix`, with their checksums."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __getitem__(self, path: str) -> bytes:
        if not path.startswith(f"{self.prefix}/") or ".." in path:
            raise KeyError(path)
        there = DEBIAN_MAVEN / path.removeprefix(f"{self.prefix}/")
        if there.is_file():
            return there.read_bytes()
        if there.suffix == ".sha1" and there.with_suffix("").is_file():
            return hashlib.sha1(there.with_suffix("").read_bytes()).hexdigest().encode()
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}/{path.relative_to(DEBIAN_MAVEN)}" for path in DEBIAN_MAVEN.rglob("*"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def newest(artifact: str) -> str:
    """The version the distribution has of an artifact, such as `junit/junit`."""
    numbers = [folder.name for folder in (DEBIAN_MAVEN / artifact).iterdir() if folder.name.replace(".", "").isdigit()]
    return max(numbers, key=lambda text: [int(part) for part in text.split(".")])
