"""Maven's settings, and the model it carries for where nothing is set."""

from __future__ import annotations

import glob
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

import msgspec
from skep_policy.errors import PolicyError

from .found import Found
from .probe import MAX_CONFIG, Host

_MODEL = "org/apache/maven/model/pom-4.0.0.xml"
"""The model every project inherits from ("Super POM"), in the jar of the model builder."""


_CGROUPS_V1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
"""There is one where the kernel's memory controller is of the first version."""


class Repository(msgspec.Struct, frozen=True):
    id: str
    url: str


class Mirror(msgspec.Struct, frozen=True):
    of: str
    url: str
    blocked: bool


class Settings(msgspec.Struct, frozen=True):
    repositories: tuple[Repository, ...] = ()
    mirrors: tuple[Mirror, ...] = ()


def read(host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    """The repositories of Maven, mirrors applied. Raises PolicyError."""
    mvn = host.find("mvn")
    assert mvn is not None
    home = os.path.dirname(os.path.dirname(os.path.realpath(mvn)))
    user_path = host.home(".m2/settings.xml")
    host.vouch(home, user_path)
    user = parse_settings(host.read(user_path) or "", host.environ, user_path)
    system_path = os.path.join(home, "conf", "settings.xml")
    system = parse_settings(host.read(system_path) or "", host.environ, system_path)
    default = built_in(home)
    repositories = [*user.repositories, *system.repositories]
    repositories += [own for own in default if own.id not in {repository.id for repository in repositories}]
    mirrors = [*user.mirrors, *system.mirrors]
    urls = [url for repository in repositories if (url := mirrored(repository, mirrors))]
    options = host.environ.get("MAVEN_OPTS")
    env = {"MAVEN_OPTS": options} if options else {}
    if os.path.exists(_CGROUPS_V1):
        env |= {variable: option for option, variable in settings.get("cgroups-v1", {}).items()}
    found = Found(tuple(dict.fromkeys(urls)), env)
    if not user.mirrors and not user.repositories:
        return [found]
    # There is no variable for a repository or a mirror.
    why = f"Maven's repositories stand in {user_path}, hidden for its passwords; --grant {user_path} lets Maven read it"
    return [found, Found(files=(user_path,), unless_granted=why)]


def built_in(home: str) -> list[Repository]:
    """The repositories of the model that the Maven below `home` carries. Raises PolicyError."""
    for path in sorted(glob.glob(os.path.join(glob.escape(home), "lib", "maven-model-builder-*.jar"))):
        try:
            with zipfile.ZipFile(path) as jar, jar.open(_MODEL) as file:
                model = ElementTree.fromstring(file.read(MAX_CONFIG))
        except (OSError, KeyError, zipfile.BadZipFile, ElementTree.ParseError) as error:
            raise PolicyError(f"Maven's model cannot be read: {error}", source=path) from None
        return list(dict.fromkeys(_repositories(model, {})))
    raise PolicyError(f"no Maven below {home}: its lib has no maven-model-builder; install Maven")


def parse_settings(text: str, environ: Mapping[str, str], path: str) -> Settings:
    """Mirrors, and the repositories of active profiles (Maven, "Settings Reference"). Raises PolicyError."""
    if not text.strip():
        return Settings()
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise PolicyError(f"not XML: {error}", source=path) from None
    active = {_text(element) for element in _below(root, "activeProfiles", "activeProfile")}
    repositories: list[Repository] = []
    for profile in _below(root, "profiles", "profile"):
        by_default = any(_text(element) == "true" for element in _below(profile, "activation", "activeByDefault"))
        if by_default or _value(profile, "id") in active:
            repositories += _repositories(profile, environ)
    mirrors = [
        Mirror(
            _value(mirror, "mirrorOf"), _expanded(_value(mirror, "url"), environ), _value(mirror, "blocked") == "true"
        )
        for mirror in _below(root, "mirrors", "mirror")
    ]
    return Settings(tuple(repositories), tuple(mirrors))


def mirrored(repository: Repository, mirrors: list[Mirror]) -> str | None:
    """The URL that is asked for a repository; None where a mirror blocks it. The first mirror for exactly this
    repository wins, then the first whose pattern covers it.
    """
    chosen = next((mirror for mirror in mirrors if mirror.of == repository.id), None)
    chosen = chosen or next((mirror for mirror in mirrors if covers(mirror.of, repository)), None)
    if chosen is None:
        return repository.url
    return None if chosen.blocked else chosen.url


def covers(pattern: str, repository: Repository) -> bool:
    """Does a mirrorOf mean a repository? ("Guide to Mirrors", advanced specification)"""
    words = [word.strip() for word in pattern.split(",")]
    local = re.match(r"(?:file:|https?://(?:localhost|127\.0\.0\.1)(?:[:/]|$))", repository.url) is not None
    http = repository.url.startswith("http:")
    if "!" + repository.id in words:
        return False
    return any(
        word in ("*", repository.id)
        or (word == "external:*" and not local)
        or (word == "external:http:*" and http and not local)
        for word in words
    )


def _repositories(element: ElementTree.Element, environ: Mapping[str, str]) -> Iterator[Repository]:
    for outer, inner in (("repositories", "repository"), ("pluginRepositories", "pluginRepository")):
        for repository in _below(element, outer, inner):
            yield Repository(_value(repository, "id"), _expanded(_value(repository, "url"), environ))


def _below(element: ElementTree.Element, *names: str) -> list[ElementTree.Element]:
    """The descendants along these names, whatever namespace they are in."""
    found = [element]
    for name in names:
        found = [child for parent in found for child in parent if child.tag.rpartition("}")[2] == name]
    return found


def _value(element: ElementTree.Element, name: str) -> str:
    return next((_text(child) for child in _below(element, name)), "")


def _text(element: ElementTree.Element) -> str:
    return (element.text or "").strip()


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$\{env\.(\w+)\}", lambda match: environ.get(match[1], ""), text)
