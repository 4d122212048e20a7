"""Shares are disjoint, cover the data and are of one length, whatever the numbers; and who this process is."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.training import partition

from tests.training.processes import environment

SETTINGS = {
    "n": st.integers(0, 200),
    "count": st.integers(1, 9),
    "seed": st.integers(0, 2**32 - 1),
    "epoch": st.integers(0, 1000),
}


def shares_of(n: int, count: int, **options: Any) -> list[npt.NDArray[Any]]:
    return [partition.indices(n, partition_index=i, num_data_partitions=count, **options) for i in range(count)]


@given(**SETTINGS, shuffle=st.booleans())
def test_shares_are_disjoint_cover_everything_and_are_within_one_of_even(
    n: int, count: int, seed: int, epoch: int, shuffle: bool
) -> None:
    shares = shares_of(n, count, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(np.concatenate(shares)) == list(range(n))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@given(**SETTINGS)
def test_the_same_seed_and_epoch_give_the_same_shares(n: int, count: int, seed: int, epoch: int) -> None:
    first, again = (shares_of(n, count, seed=seed, epoch=epoch) for _ in range(2))
    assert [share.tolist() for share in first] == [share.tolist() for share in again]


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}])
def test_another_epoch_or_seed_gives_other_shares(change: dict[str, Any]) -> None:
    assert set(partition.indices(100, partition_index=0, num_data_partitions=2)) != set(
        partition.indices(100, partition_index=0, num_data_partitions=2, **change)
    )


def test_the_shuffle_is_the_same_in_every_version() -> None:
    assert partition.indices(10, seed=7, epoch=3).tolist() == [7, 4, 1, 6, 8, 3, 5, 2, 9, 0]


@given(**SETTINGS)
def test_trimmed_shares_are_equal_and_leave_out_fewer_than_one_each(n: int, count: int, seed: int, epoch: int) -> None:
    if n < count:
        with pytest.raises(ValueError, match=f"{n} examples are fewer than one for each of {count}"):
            shares_of(n, count, seed=seed, epoch=epoch, uneven="trim")
        return
    shares = shares_of(n, count, seed=seed, epoch=epoch, uneven="trim")
    assert {len(share) for share in shares} == {n // count}
    assert len(set(np.concatenate(shares))) == n - n % count


@given(**SETTINGS)
def test_padded_shares_are_equal_and_cover_everything(n: int, count: int, seed: int, epoch: int) -> None:
    shares = shares_of(n, count, seed=seed, epoch=epoch, uneven="pad")
    assert {len(share) for share in shares} == {-(-n // count)}
    assert set(np.concatenate(shares)) == set(range(n))


@given(**SETTINGS, batch_size=st.integers(1, 20))
def test_every_process_takes_the_same_number_of_batches(
    n: int, count: int, seed: int, epoch: int, batch_size: int
) -> None:
    if n < count:
        with pytest.raises(ValueError, match="are not one batch for each of"):
            partition.steps(n, batch_size, count)
        return
    places = [{"partition_index": i, "num_data_partitions": count} for i in range(count)]
    examples = np.arange(n)
    taken = [list(partition.batches(examples, batch_size=batch_size, seed=seed, epoch=epoch, **p)) for p in places]
    assert {len(batches) for batches in taken} == {partition.steps(n, batch_size, count)}
    assert {len(batch) for batches in taken for (batch,) in batches[:-1]} <= {batch_size}
    every = np.concatenate([batch for batches in taken for (batch,) in batches])
    assert len(every) == len(set(every)) == n - n % count


@given(n=st.integers(60, 200), k=st.integers(0, 4), count=st.integers(1, 4))
def test_what_k_batches_of_each_have_taken_does_not_depend_on_how_many_processes_took_it(
    n: int, k: int, count: int
) -> None:
    def taken(count: int, batch_size: int, k: int) -> set[int]:
        places = [{"partition_index": i, "num_data_partitions": count} for i in range(count)]
        batches = [list(partition.batches(np.arange(n), batch_size=batch_size, **p))[:k] for p in places]
        return {int(example) for mine in batches for (batch,) in mine for example in batch}

    assert taken(count, 3, k) == taken(1, 3 * count, k)


def test_batches_go_on_in_the_middle_of_an_epoch() -> None:
    x, y = np.arange(50), np.arange(50) * 2
    options = {"batch_size": 4, "epoch": 2, "partition_index": 1, "num_data_partitions": 3}
    whole = list(partition.batches(x, y, **options))
    rest = list(partition.batches(x, y, first=3, **options))
    np.testing.assert_equal(rest, whole[3:])
    np.testing.assert_equal([batch[1] for batch in rest], [batch[0] * 2 for batch in rest])


def test_arrays_stay_together() -> None:
    x, y = partition.array([[1], [2], [3]], ["a", "b", "c"], partition_index=0, num_data_partitions=2)
    assert [(int(row[0]), str(label)) for row, label in zip(x, y, strict=True)] in (
        [[(a, "_abc"[a]), (b, "_abc"[b])] for a in (1, 2, 3) for b in (1, 2, 3) if a != b]
    )
    assert partition.array(np.zeros((4, 2))).shape == (4, 2)


def test_files_are_shared_out_whatever_their_order() -> None:
    names = [f"/data/{number}.tfrecord" for number in range(7)]
    shares = [
        partition.files(order, partition_index=i, num_data_partitions=2) for i, order in enumerate((names, names[::-1]))
    ]
    assert sorted(shares[0] + shares[1]) == names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.indices(10, uneven="drop"), "keep, trim, pad"),
        (lambda: partition.indices(10, partition_index=1), "belong together"),
        (lambda: partition.indices(10, partition_index=2, num_data_partitions=2), "not one of 2"),
        (lambda: partition.indices(10, partition_index=-1, num_data_partitions=2), "not one of 2"),
        (lambda: partition.array([1, 2], [1]), r"these have \[1, 2\]"),
        (lambda: partition.steps(10, 0), "are not one batch for each of"),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any launcher's variables."""
    for variables in partition.LAUNCHERS:
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return monkeypatch


def test_a_process_that_no_launcher_started_takes_everything(nowhere: pytest.MonkeyPatch) -> None:
    assert partition.index_and_count() == (0, 1)
    assert sorted(partition.indices(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("rank", "size"), partition.LAUNCHERS)
def test_the_place_is_the_launchers(nowhere: pytest.MonkeyPatch, rank: str, size: str) -> None:
    nowhere.setenv(rank, "2")
    nowhere.setenv(size, "3")
    assert partition.index_and_count() == (2, 3)
    assert partition.indices(10, shuffle=False).tolist() == [2, 5, 8]


WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "expected"),
    [
        (WORKERS, "worker", 1, (1, 2)),
        (WORKERS, "worker", "1", (1, 2)),
        ({"ps": ["c:1"], **WORKERS}, "worker", 0, (0, 2)),
        ({"ps": ["c:1"], **WORKERS}, "ps", 0, (0, 1)),
        ({"ps": ["c:1"], "chief": ["d:1"], **WORKERS}, "chief", 0, (0, 1)),
        ({"chief": ["d:1"], **WORKERS}, "chief", 0, (0, 3)),
        ({"chief": ["d:1"], **WORKERS}, "worker", 1, (2, 3)),
    ],
)
def test_the_place_in_a_tensorflow_cluster(
    nowhere: pytest.MonkeyPatch, cluster: dict[str, list[str]], kind: str, index: int | str, expected: tuple[int, int]
) -> None:
    nowhere.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
    assert partition.index_and_count() == expected


DATASETS = """
import sys
import numpy as np
import numpy.typing as npt
from muster.training import partition
assert "tensorflow" not in sys.modules
import tensorflow as tf

def shares(n, count, **options):
    examples = tf.data.Dataset.range(n)
    places = [{"partition_index": i, "num_data_partitions": count} for i in range(count)]
    return [list(partition.dataset(examples, **place, **options).as_numpy_iterator()) for place in places]

for n, count in [(10, 3), (9, 3), (1, 2), (0, 2)]:
    plain, shuffled = shares(n, count), shares(n, count, shuffle_buffer=100, seed=5)
    assert sorted(sum(plain, [])) == sorted(sum(shuffled, [])) == list(range(n))
    assert max(map(len, plain)) - min(map(len, plain)) <= 1
    assert n < count or {len(share) for share in shares(n, count, uneven="trim")} == {n // count}
    padded = shares(n, count, uneven="pad")
    assert {len(share) for share in padded} == {-(-n // count)} and set(sum(padded, [])) == set(range(n))

first, again, later, other = [
    shares(100, 2, shuffle_buffer=100, seed=seed, epoch=epoch) for seed, epoch in [(5, 0), (5, 0), (5, 1), (6, 0)]
]
assert first == again and first != later and first != other and later != other

endless = tf.data.Dataset.counter(1).flat_map(
    lambda epoch: partition.dataset(tf.data.Dataset.range(100), epoch=epoch, seed=5, shuffle_buffer=100,
                                    partition_index=0, num_data_partitions=2))
assert list(endless.take(50).as_numpy_iterator()) == later[0]

x, y = np.arange(25), np.arange(25.0)[:, None]
place = {"partition_index": 1, "num_data_partitions": 2}
steps = partition.steps(25, 4, 2)
stream = partition.epochs(x, y, batch_size=4, seed=3, first=2, **place)
expected = [batch for epoch in (2, 3) for batch in partition.batches(x, y, batch_size=4, seed=3, epoch=epoch, **place)]
np.testing.assert_equal(list(stream.take(2 * steps).as_numpy_iterator()), expected)
assert stream.cardinality() == tf.data.INFINITE_CARDINALITY

uneven = tf.data.Dataset.range(7)
endless = tf.data.Dataset.counter(0).flat_map(
    lambda epoch: partition.dataset(
        uneven, epoch=epoch, shuffle_buffer=7, uneven="trim", partition_index=0, num_data_partitions=2
    )
)
first, second = (list(endless.skip(start).take(3).as_numpy_iterator()) for start in (0, 3))
assert sorted(first) == sorted(second) == [0, 2, 4]

unknown = tf.data.Dataset.range(10).filter(lambda number: number > 3)
assert len(list(partition.dataset(unknown))) == 6
try:
    partition.dataset(unknown, uneven="trim")
except ValueError as error:
    assert "knows how long it is" in str(error)
else:
    raise AssertionError("nothing was raised")
"""


@pytest.mark.slow
def test_datasets() -> None:
    subprocess.run([sys.executable, "-c", DATASETS], env=environment(), check=True, timeout=120)
