"""Amounts of resources as Kubernetes writes them, such as ``100m`` and ``2Gi``, as numbers and in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

WRITTEN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
SUFFIXES = {
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}
Amounts = Mapping[str, Fraction]  # by the name of a resource
GPU = "nvidia.com/gpu"


def quantity(written: object) -> Fraction:
    """Return an amount that Kubernetes has written. Raises ValueError for other texts.

    >>> [str(quantity(written)) for written in ("100m", "2Ki", "1.5", "1e3", 4)]
    ['1/10', '2048', '3/2', '1000', '4']
    """
    found = WRITTEN.fullmatch(str(written))
    if found is None:
        raise ValueError(f"{written!r} is no amount of Kubernetes")
    number, exponent, suffix = found.groups()
    return Fraction(number + (exponent or "")) * SUFFIXES.get(suffix, Fraction(1))


def amounts(written: Mapping[str, Any] | None) -> dict[str, Fraction]:
    """Return the amounts of a mapping such as ``requests``, without what is none."""
    found = {}
    for name, value in (written or {}).items():
        try:
            found[name] = quantity(value)
        except ValueError:
            continue
    return found


def in_words(resource: str, amount: Fraction) -> str:
    """Return an amount of a resource in words.

    >>> in_words("requests.cpu", Fraction(1, 2)), in_words("memory", Fraction(2 * 10**9)), in_words("pods", Fraction(1))
    ('0.5 cores', '2 GB', '1 pod')
    >>> in_words("requests.nvidia.com/gpu", Fraction(2)), in_words("example.com/nic", Fraction(2))
    ('2 GPUs', '2 example.com/nic')
    """
    kind = re.sub(r"^(requests\.|limits\.|count/)", "", resource)
    if kind in ("memory", "ephemeral-storage"):
        return f"{float(amount) / 1e9:.4g} GB"
    unit = {"cpu": "core", "pods": "pod", "secrets": "Secret", GPU: "GPU"}.get(kind)
    if unit is None:
        return f"{float(amount):g} {kind}"
    return f"{float(amount):g} {unit}{'' if amount == 1 else 's'}"
