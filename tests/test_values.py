"""A function's value comes back as it was, and without code being run where plain data will do."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.errors import JobError
from muster.records.result import Result
from muster.runner import values

from tests.plain import Plain

Pair = collections.namedtuple("Pair", "a b")


def through(folder: Path, value: Any) -> tuple[Any, str]:
    """A value as it comes back, and the ending of the file that it was in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_RESULTS", str(folder / "results"))
        patch.setenv("MUSTER_WORKER", "worker-0")
        (folder / "results").mkdir(exist_ok=True)
        values.save(value, values.place())
    (path,) = (folder / "results").iterdir()
    try:
        return Result("succeeded", "run", folder).value, path.suffix
    finally:
        path.unlink()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()) | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=PLAIN)
def test_plain_data_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    found, suffix = through(tmp_path_factory.getbasetemp(), value)
    assert (repr(found), suffix) == (repr(value), ".json")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.ones((2, 3), np.complex64)),
        np.array([], ">i2"),
        np.array(["a", "\xe9"]),
        np.array(["2030-01-01"], "datetime64[D]"),
        np.array(5),
        np.float16(0.5),
        np.float64(0.1),
        np.bool_(True),
        np.str_("text"),
    ],
    ids=repr,
)
def test_arrays_come_back_as_they_were(tmp_path: Path, array: Any) -> None:
    value = {"weights": [array, 1], "loss": 0.5}
    found, suffix = through(tmp_path, value)
    came = found["weights"][0]
    assert (type(came), came.dtype, came.shape) == (type(array), array.dtype, array.shape)
    assert np.array_equal(came, array)
    assert (found["weights"][1], found["loss"], suffix) == (1, 0.5, ".npz")


def circle() -> list[Any]:
    parts: list[Any] = []
    parts.append(parts)
    return parts


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, 2),
        {1, 2},
        datetime.date(2030, 1, 1),
        collections.OrderedDict(a=1),
        np.array([object, None]),
        np.ma.array([1]),
        10**5000,
        [Pair(np.zeros(2), 1)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_pickled(tmp_path: Path, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, suffix = through(tmp_path, value)
    assert type(found) is type(value)
    assert suffix == ".pkl"
    monkeypatch.setenv("MUSTER_UNPICKLE", "0")
    with pytest.raises(JobError, match="pickled") as refused:
        through(tmp_path, value)
    assert "MUSTER_UNPICKLE" in str(refused.value)


def test_what_contains_itself_is_pickled(tmp_path: Path) -> None:
    found, suffix = through(tmp_path, circle())
    assert found[0] is found
    assert suffix == ".pkl"


class Harm:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_beside_plain_data_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rank-0.json").write_text("7")
    (tmp_path / "results" / "rank-0.pkl").write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    assert Result("succeeded", "run", tmp_path).values == [7]
    assert not (tmp_path / "harm").exists()


def test_a_rank_that_ended_without_returning_has_its_place_among_the_values(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rank-1.json").write_text("5")
    ended = {"rank 0": 0, "rank 1": 0, "rank 10": 0, "ps-0": 0}
    result = Result("succeeded", "run", tmp_path, exit_codes=ended)
    assert (result.values, result.value) == ([None, 5, None], None)


def test_an_array_that_runs_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    hostile = np.array([Harm(tmp_path / "harm")], object)
    np.savez(tmp_path / "results" / "rank-0.npz", hostile, value=np.array('{"array": 0}'))
    with pytest.raises(ValueError, match="allow_pickle"):
        Result("succeeded", "run", tmp_path).values  # noqa: B018
    assert not (tmp_path / "harm").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", ["json", "npz", "pkl"])
@pytest.mark.parametrize("target", ["", "/dev/zero"])
def test_a_value_that_is_no_file_is_refused(tmp_path: Path, suffix: str, target: str) -> None:
    (tmp_path / "results").mkdir()
    path = tmp_path / "results" / f"rank-0.{suffix}"
    path.symlink_to(target) if target else os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="no regular file"):
        Result("succeeded", "run", tmp_path).values  # noqa: B018


def test_a_value_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rank-0.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="in one another"):
        Result("succeeded", "run", tmp_path).values  # noqa: B018


ONE = {"arr_0": np.zeros(1 << 20)}


@pytest.mark.parametrize(
    ("described", "arrays", "save", "why"),
    [
        ('{"array": 0}', ONE, np.savez_compressed, "larger than the file"),
        ('[{"array": 0}, {"array": 0}]', ONE, np.savez, "arr_0"),
        ('{"array": 1}', ONE, np.savez, "arr_1"),
        ('{"array": 0, "tuple": []}', ONE, np.savez, "too many values"),
        ('{"dict": [[[1], 2]]}', {}, np.savez, "unhashable"),
        ('{"dict": 7}', {}, np.savez, "not iterable"),
        ("[" * 10000, {}, np.savez, "in one another"),
        ("9" * 5000, {}, np.savez, "digits"),
    ],
)
def test_a_value_that_no_function_has_returned_costs_little_and_is_refused(
    tmp_path: Path, described: str, arrays: dict[str, Any], save: Any, why: str
) -> None:
    (tmp_path / "results").mkdir()
    save(tmp_path / "results" / "rank-0.npz", value=np.array(described), **arrays)
    with pytest.raises(JobError, match=f"What rank-0 returned cannot be read: .*{why}.*\n.*rank-0.npz"):
        Result("succeeded", "run", tmp_path).values  # noqa: B018


def test_a_value_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with (tmp_path / "results" / "rank-0.json").open("wb") as file:
        file.truncate(1 << 42)  # it takes no room
    with pytest.raises(JobError, match="more than this machine has memory"):
        Result("succeeded", "run", tmp_path).values  # noqa: B018


def test_a_run_returns_without_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_UNPICKLE", "0")

    def returns() -> Any:
        import numpy

        return {"weights": numpy.ones(3), "rank": 0}

    cluster = muster.run_cluster(2, worker_script=returns, strategy=Plain()).cluster
    assert cluster is not None
    assert [value["weights"].tolist() for value in cluster.result.values] == [[1, 1, 1]] * 2


@pytest.mark.parametrize("value", [7, np.arange(3.0), {1, 2}], ids=["json", "npz", "pickled"])
def test_a_value_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    done = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix))
        fsync(descriptor)

    def noting_replace(before: str, after: str) -> None:
        done.append(("replace", Path(before).suffix))
        replace(before, after)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    through(tmp_path, value)
    assert done == [("sync", ".part"), ("replace", ".part")]


@pytest.mark.parametrize("suffix", [".json", ".npz", ".pkl"])
def test_a_link_in_the_place_of_a_value_is_replaced_and_what_it_names_is_left_alone(
    tmp_path: Path, suffix: str
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    (tmp_path / "results").mkdir()
    for ending in (suffix, f"{suffix}.part"):
        (tmp_path / "results" / f"worker-0{ending}").symlink_to(mine)
    value = {".json": 1, ".npz": np.zeros(3), ".pkl": Plain()}[suffix]
    through(tmp_path, value)
    assert mine.read_text() == "kept"


@pytest.mark.parametrize("value", [b"x" * 100_000, {"x" * 100_000}], ids=["JSON", "pickle"])
def test_a_value_that_the_disk_has_no_room_for_says_so_and_leaves_nothing(
    small_disk: Callable[[int], Path], value: Any
) -> None:
    disk = small_disk(64)
    with pytest.raises(OSError, match="what the function returned cannot be written: No space left") as raised:
        values.save(value, str(disk / "rank-0"))
    assert str(disk) in str(raised.value)
    assert not list(disk.iterdir())


def test_an_error_of_the_system_that_a_value_itself_raises_is_not_the_disk_s(tmp_path: Path) -> None:
    class OfAFile:
        def __reduce__(self) -> Any:
            return open(tmp_path / "not there")  # noqa: SIM115

    with pytest.raises(TypeError, match="of type OfAFile, cannot be sent back: .*not there"):
        values.save(OfAFile(), str(tmp_path / "rank-0"))
