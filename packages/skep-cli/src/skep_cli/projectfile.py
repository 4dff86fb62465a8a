"""The project's own policy file, and whether the operator has trusted it. Nothing here imports click: `skep exec`
reads it.
"""

from __future__ import annotations

import os

from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skep_policy.trust import TrustStore

PROJECT_FILE = "skep.toml"


def project_of(folder: str, *, facts: Facts) -> str:
    """The folder whose project file applies in `folder`: the nearest with one, up to the top of its repository.

    Without a repository only the folder itself counts, and the home folder is nobody's project but its own.
    """
    found, here = "", folder
    while True:
        if not found and os.path.lexists(os.path.join(here, PROJECT_FILE)):
            found = here
        if os.path.lexists(os.path.join(here, ".git")):
            return found or folder
        parent = os.path.dirname(here)
        if here in (facts.home, parent):
            return found if found == folder else folder
        here = parent


def project_layer(folder: str, *, facts: Facts) -> list[Layer]:
    """The project file that applies in a folder as a layer, none when there is none. Raises PolicyError."""
    project = project_of(folder, facts=facts)
    path = os.path.join(project, PROJECT_FILE)
    if not os.path.lexists(path):
        return []
    from skep_policy.load import parse_policy, read_text

    text = read_text(path)
    trusted = trust_store(facts).is_trusted(os.path.realpath(project), text.encode())
    return [Layer(path, parse_policy(text, source=path), trusted=trusted, base=project)]


def store_path(facts: Facts) -> str:
    return os.path.join(facts.state_dir, "trusted.json")


def trust_store(facts: Facts) -> TrustStore:
    """What this user has trusted so far. Raises Unavailable when the store is not one."""
    from skep_policy.trust import TrustStore

    from .refusals import Unavailable

    path = store_path(facts)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return TrustStore()
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", source=path) from None
    try:
        return TrustStore.decode(data, source=path)
    except PolicyError as error:
        raise Unavailable(error.problem, source=path) from None
