"""Decides which processes of a worker begin as forks of its template, and says why the others do not."""

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .processes import Become

LARGEST_RECIPE = 1 << 16  # characters of an environment that is sent to the guard


class WarmStarts:
    """Warm starts of one worker's processes: forks of the template instead of new interpreters.

    Args:
        config: the worker's config, with its script's imports and the template of which its agent is a fork.
        tell_guard: tells the guard how to make the next run's template (``recipe``), or why not to (``cold``).
        write: writes a remark into the worker's log.
    """

    def __init__(
        self, config: "dict[str, Any]", tell_guard: "Callable[..., object]", write: "Callable[[str], object]"
    ) -> None:
        self._imports: "dict[str, Any] | None" = config.get("imports")
        self._template: "dict[str, Any] | None" = config.get("template")
        self._why_cold: str = config.get("cold", "")
        self._tell_guard = tell_guard
        self._write = write
        self._has_told_guard = self._has_told_why = False

    def become(self, argv: "list[str]", env: "dict[str, str]", cwd: str) -> "Become | None":
        """Return a function that turns a fork of the agent into a process of the script; None where it starts cold."""
        if self._imports is None:
            return None
        from .warm import become, relevant, starts_script  # only here, as agents say hello before

        if not starts_script(argv):
            return None
        modules: "list[str]" = self._imports["modules"]
        if not self._has_told_guard:
            self._has_told_guard = True
            known = relevant(env, os.path.dirname(argv[2]))
            never = _reason_against_any(known, modules)
            if never:
                self._tell_guard(cold=never)
                self._why_cold = never
            else:
                self._tell_guard(recipe={"python": argv[0], "env": known, "imports": modules})
        why = self._why_cold
        if self._template is not None:
            made = self._template["made"]
            why = made.reason_against(argv, env, cwd)
            if why is None:
                return functools.partial(become, made)
        if why and modules and not self._has_told_why:  # without imports there is nothing to gain
            self._has_told_why = True
            self._write("the script starts cold: {}".format(why))
        return None


def _reason_against_any(env: "dict[str, str] | None", modules: "list[str]") -> str:
    """Return, in words, why no template suits a script with this environment and imports; empty where one may."""
    if not modules:
        return "the script begins with no imports of packages"
    if env is None:
        return "its PYTHONPATH names folders by relative paths"
    if sum(map(len, [*env, *env.values()])) >= LARGEST_RECIPE:
        return "its environment is too large"
    return ""
