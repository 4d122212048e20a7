"""Arguments that ``run_cluster`` or ``pool`` does not have, refused with the name or place that was likely meant."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from muster import platforms, strategies
from muster.checks.names import NUMBERS, refuse_near, refuse_parameters, refuse_script_as_number, refuse_unknown
from muster.errors import CallError
from muster.platforms import PLATFORMS
from muster.strategies import STRATEGIES
from muster.text.arguments import Argument, ArgumentText


def refuse_misnamed(given: Mapping[str, Any], own: Sequence[str]) -> None:
    """Refuse arguments that neither ``run_cluster`` nor any strategy or platform has.

    Args:
        given: the arguments that were given, by parameter name; required ones may be missing.
        own: names of the parameters of ``run_cluster``.

    Raises:
        CallError: there is such an argument, or a script or a name stands where a number belongs.
    """
    refuse_script_as_number(given)
    _refuse_name_as_number(given, {"strategy": STRATEGIES, "platform": PLATFORMS})
    strategy = given.get("strategy", "parameter_server")
    mine = strategies.option_names(strategy) if isinstance(strategy, str) else []
    mine += _options_of_platform(given.get("platform"))
    unknown = [name for name in given.get("options", {}) if name not in mine]
    if not unknown:
        return  # before the other strategies and platforms are imported
    refuse_parameters("run_cluster", unknown, given.get("worker_script"))
    if isinstance(strategy, str) and strategy in STRATEGIES:
        known = _of_strategies() | _of_platforms()
        refuse_unknown("run_cluster", [name for name in unknown if name not in known], [*own, *mine])


def _refuse_name_as_number(given: Mapping[str, Any], known: Mapping[str, Container[str]]) -> None:
    """Raise CallError for a name of ``known`` in the place of a number, as in ``run_cluster(2, "processes")``."""
    for number in NUMBERS:
        value = given.get(number)
        for name, values in known.items():
            if isinstance(value, str) and value in values:
                raise CallError(
                    f"{number} is {value!r}; it must be a number.", advice=ArgumentText(Argument(name, value))
                )


def refuse_misnamed_of_pool(given: Mapping[str, Any], own: Sequence[str], of_runs: Sequence[str]) -> None:
    """Refuse arguments that ``pool`` does not have, except options of other platforms, which are refused elsewhere.

    Args:
        given, own: as above.
        of_runs: names of the parameters of ``run_cluster``.

    Raises:
        CallError: there is one, or a script or a name stands where a number belongs.
    """
    refuse_script_as_number(given)
    _refuse_name_as_number(given, {"platform": PLATFORMS})
    mine = [*own, *_options_of_platform(given.get("platform"))]
    unknown = [name for name in given.get("options", {}) if name not in mine]
    if not unknown:
        return
    others = [name for name in unknown if name not in _of_platforms()]
    for name in others:
        if name in of_runs or name in _of_strategies():
            raise CallError(
                f"muster.pool has no argument {name!r}: each of its runs has its own.",
                advice=f"pool.run_cluster(..., {name}=...)",
            )
    refuse_near("muster.pool", others, mine)


def _options_of_platform(platform: Any) -> list[str]:
    """Return the names of the options of a platform that is given by name, or of the default platform."""
    if platform is not None and not isinstance(platform, str):
        return []
    return platforms.option_names(platforms.platform_name(platform))


def _of_strategies() -> set[str]:
    return {option for name in STRATEGIES for option in strategies.option_names(name)}


def _of_platforms() -> set[str]:
    return {option for name in PLATFORMS for option in platforms.option_names(name)}
