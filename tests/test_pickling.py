"""What cannot be pickled is named: the global, the variable, the argument, or the notebook's own shell."""

from __future__ import annotations

import functools
import multiprocessing.spawn
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from muster.checks.script import make_script
from muster.errors import ScriptError

lock = threading.Lock()


class Shell:
    """A notebook's shell, which no worker has."""

    def __init__(self) -> None:
        self.lock = lock

    def get(self) -> Shell:
        return self

    def system(self, command: str) -> None:
        raise NotImplementedError


get_ipython = Shell().get


def locked() -> None:
    lock.acquire()


def calls_locked() -> None:
    locked()


def has_it_inside() -> Callable[[], Any]:
    return lambda: lock


def has_it_around() -> Callable[[], Any]:
    inner = threading.Lock()
    return lambda: inner


def by_default(held: Any = lock) -> None:
    raise NotImplementedError


def of_the_shell() -> None:
    get_ipython().system("ls")


def calls_itself() -> None:
    calls_itself()
    locked()


def given(data: Any) -> None:
    raise NotImplementedError


CULPRITS: list[tuple[Callable[..., Any], str]] = [
    (locked, "as it uses the global 'lock': cannot pickle"),
    (has_it_inside, "as it uses the global 'lock': cannot pickle"),
    (calls_locked, "as it uses the global 'locked', which uses the global 'lock': "),
    (calls_itself, "as it uses the global 'locked', which uses the global 'lock': "),
    (has_it_around(), "as it uses the variable 'inner' from around it: "),
    (by_default, "as it uses the default of 'held': "),
    (Shell().get, "as it uses the object that it is a method of: "),
    (functools.partial(given, lock), "with its argument number 1: "),
    (functools.partial(locked), "as it uses the global 'lock': "),
]


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Have the functions of this file pickled as those of a notebook are."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(("function", "words"), CULPRITS)
def test_what_is_in_the_way_is_named(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ScriptError, match="cannot be sent to the workers") as caught:
        make_script(function)
    assert words in str(caught.value.message)


def test_an_argument_is_named_without_its_value() -> None:
    with pytest.raises(ScriptError, match="given cannot be sent to the workers with its argument 'data': ") as caught:
        make_script(given, kwargs={"data": ("secret" for _ in range(3))})
    assert "inside the function" in str(caught.value.advice)
    assert "secret" not in str(caught.value)


def test_commands_of_the_notebook_lead_to_subprocess() -> None:
    with pytest.raises(ScriptError, match="uses get_ipython, as !commands") as caught:
        make_script(of_the_shell)
    assert "subprocess.run" in str(caught.value.advice)


def test_a_function_of_a_script_that_spawned_processes_run_too_is_sent_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sweep.py"
    script.write_text("rate = 0.5\ndef train():\n    return rate\n")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # put back at the end
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])
    multiprocessing.spawn._fixup_main_from_path(str(script))  # type: ignore[attr-defined]  # as such a process does
    by_value = make_script(sys.modules["__mp_main__"].train).pickled
    cloudpickle.unregister_pickle_by_value(sys.modules["__mp_main__"])
    monkeypatch.delitem(sys.modules, "__mp_main__")  # a worker has none

    assert cloudpickle.loads(by_value)() == 0.5
