"""Images that nodes pull: since when, and how large, as far as events and nodes tell that. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Sizes = Mapping[str, int]  # bytes to be pulled, by an image's full name
BEGINS, ENDS = "Pulling", "Pulled"  # reasons of events

PULLING = re.compile(r'Pulling image "(?P<image>[^"]+)"')
# The size is told by Kubernetes 1.29 and later, once a node has the image.
PULLED = re.compile(r'Successfully pulled image "(?P<image>[^"]+)".* Image size: (?P<size>\d+) bytes')


def image_of(event: Mapping[str, Any]) -> str:
    """Return the image whose pull begins with an event; empty for any other event."""
    found = PULLING.search(str(event.get("message") or ""))
    return found["image"] if found else ""


def sizes_of_events(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the sizes of images that events about ended pulls tell."""
    found = (PULLED.search(str(event.get("message") or "")) for event in events)
    return {full_name(each["image"]): int(each["size"]) for each in found if each}


def sizes_of_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the sizes of the images that nodes have."""
    return {
        full_name(str(name)): int(image.get("sizeBytes") or 0)
        for node in nodes
        for image in node.get("status", {}).get("images") or ()
        for name in image.get("names") or ()
    }


def size_of(image: str, sizes: Sizes) -> int | None:
    """Return the size of an image; None where it is unknown."""
    return sizes.get(full_name(image)) or None


def in_words(image: str, since: str, sizes: Sizes) -> str:
    """Return, in words, that an image is being pulled; ``image`` is empty where its name is unknown.

    >>> in_words("python:3.11", "2026-11-22T18:00:02Z", {"docker.io/library/python:3.11": 50_000_000})
    'Its image python:3.11 (50 MB) is being pulled since 2026-11-22T18:00:02Z.'
    """
    size = size_of(image, sizes)
    parts = ["Its image", image, "" if size is None else f"({_in_bytes(size)})", f"is being pulled since {since}."]
    return " ".join(filter(None, parts))


def full_name(image: str) -> str:
    """Return an image's name as nodes list it: with its registry, and a tag or a digest.

    >>> full_name("python"), full_name("me/python:3.11"), full_name("localhost:5000/python@sha256:1")
    ('docker.io/library/python:latest', 'docker.io/me/python:3.11', 'localhost:5000/python@sha256:1')
    """
    first, _, rest = image.partition("/")
    has_registry = bool(rest) and ("." in first or ":" in first or first == "localhost")
    whole = image if has_registry else f"docker.io/{image if rest else f'library/{image}'}"
    last = whole.rpartition("/")[2]
    return whole if ":" in last or "@" in last else f"{whole}:latest"


def _in_bytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
