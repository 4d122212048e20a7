"""Names that misspelt ones stand for, as the error of a run suggests them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import muster
import numpy as np
import pytest
from muster.errors import ScriptFailed
from muster.training.suggestions import did_you_mean


def of_a_module() -> None:
    np.arrange(3)  # type: ignore[attr-defined]


def of_an_object() -> None:
    [].appendd(1)  # type: ignore[attr-defined]


def in_a_function() -> None:
    weights = 1
    print(wieghts, weights)  # type: ignore[name-defined]  # noqa: F821


def of_an_import() -> None:
    from json import dmups  # type: ignore[attr-defined]  # noqa: F401


def like_nothing() -> None:
    print(xyzzy)  # type: ignore[name-defined]  # noqa: F821


class Rude:
    def __dir__(self) -> list[str]:
        raise RuntimeError("no names")


def of_what_tells_no_names() -> None:
    Rude().train()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        (of_a_module, "arange"),
        (of_an_object, "append"),
        (in_a_function, "weights"),
        (of_an_import, "dumps"),
        (like_nothing, ""),
        (of_what_tells_no_names, ""),
    ],
)
def test_a_slip_is_told_with_the_name_that_is_near(slip: Callable[[], None], meant: str) -> None:
    with pytest.raises((AttributeError, NameError, ImportError)) as caught:
        slip()
    assert did_you_mean(caught.value) == meant
    assert did_you_mean(ValueError("name 'x' is not defined")) == ""


def test_the_error_of_a_run_advises_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import json\njson.dmups(1)\n")
    with pytest.raises(ScriptFailed) as caught:
        muster.run_cluster(1, strategy="processes", worker_script=script, python=sys.executable, dashboard=False)
    assert caught.value.message.endswith("AttributeError: module 'json' has no attribute 'dmups'")
    assert "has no attribute 'dmups'. Did you mean: 'dumps'?" in str(caught.value.details)
    assert str(caught.value.advice) == "dumps in place of dmups"
