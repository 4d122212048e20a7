"""The guard of containers: a process that outlives the session and removes its containers, networks and homes."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any

from muster.agent.owners import is_orphaned, owner
from muster.agent.removal import remove_folder
from muster.platforms.session_guard import SessionGuard
from muster.records.scratch import claim, sweep

OWNER = "muster.owner"  # label of all that a platform object makes: session_guard.owner() and a random suffix
MOST_LISTINGS = 5
ENDING = re.compile(r"/proc/\d+/\S+: no such (?:process|file)", re.IGNORECASE)  # in an error of Podman's
HOMES = "muster-containers-"  # prefix of the folders with the homes of an owner's containers


def make_homes(label: str) -> str:
    """Make the folder for the homes of an owner's containers on this machine, private to this user.

    Raises:
        OSError: the folder cannot be made.
    """
    folder = homes_of(label)
    folder.mkdir(mode=0o700)
    claim(folder)
    return str(folder)


def base_folder() -> Path:
    """Return the folder of this machine for what containers have mounted, on a disk rather than in memory."""
    return Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir())


def homes_of(label: str) -> Path:
    """Return the path of the folder for the homes of an owner's containers."""
    return base_folder() / f"{HOMES}{label}"


def new_label() -> str:
    """Return a label for what a platform object of this process makes, which nothing else has."""
    return f"{owner()}.{secrets.token_hex(4)}"


def is_left(label: str) -> bool:
    """Return whether this is such a label, of a process that has ended for certain.

    Whoever may use the engine can give any label to containers, and paths are made of labels.
    """
    process, _, rest = label.rpartition(".")
    return re.fullmatch("[0-9a-f]{8}", rest) is not None and is_orphaned(process)


def remove_orphaned_homes() -> None:
    """Remove the homes of sessions that were killed together with their guards, or before the machine rebooted."""
    sweep(homes_of("").parent)


class ContainerGuard(SessionGuard):
    """The guard of a session's containers, which this object starts. Raises OSError."""

    def __init__(self, url: str, label: str) -> None:
        super().__init__(__name__, {"url": url, "label": label})


def containers_with(client: Any, label: str) -> list[dict[str, Any]]:
    """Return the containers that have a label, or a label of this value, as the engine lists them; ended ones, too.

    Podman lists none where a process of any container ends at that very moment: it is then asked again.

    Raises:
        APIError, RequestException: the engine fails to.
    """
    from docker.errors import APIError

    left = MOST_LISTINGS
    while True:
        try:
            found: list[dict[str, Any]] = client.containers(all=True, filters={"label": [label]})
            return found
        except APIError as error:
            left -= 1
            if not left or not ENDING.search(str(error.explanation)):
                raise


def remove_everything(client: Any, label: str) -> None:
    """Remove the containers with an owner's label, running ones too, with their volumes; then its networks and homes.

    Raises:
        APIError, RequestException: the engine fails to.
    """
    from docker.errors import NotFound

    of_owner = f"{OWNER}={label}"
    for container in containers_with(client, of_owner):
        with contextlib.suppress(NotFound):
            client.remove_container(container["Id"], force=True, v=True)
    for network in client.networks(filters={"label": [of_owner]}):
        with contextlib.suppress(NotFound):
            client.remove_network(network["Id"])
    remove_folder(homes_of(label))


def remove_left_behind(client: Any) -> None:
    """Remove the containers and networks of sessions that were killed together with their guards.

    Raises:
        APIError, RequestException: the engine fails to.
    """
    found = [*containers_with(client, OWNER), *client.networks(filters={"label": [OWNER]})]
    for label in {(entry.get("Labels") or {}).get(OWNER, "") for entry in found}:
        if is_left(label):
            remove_everything(client, label)


def clean_up(facts: dict[str, Any]) -> None:
    """Remove the containers, networks and homes that a session has made, given the guard's facts."""
    from muster.platforms.containers.engine import connect

    remove_everything(connect(facts["url"]).client, facts["label"])
