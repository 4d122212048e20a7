"""A process alone, and one whose Horovod is missing; ranks that have it are in test_keras.py."""

import sys

import pytest
from muster.training import horovod


@pytest.fixture(autouse=True)
def nobody_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (horovod.RANK_VARIABLE, horovod.SIZE_VARIABLE, *horovod.MPI_SIZES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "started",
    [{}, {"PMI_SIZE": "1"}, {"OMPI_COMM_WORLD_SIZE": "1"}, {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}],
    ids=lambda started: next(iter(started), "by itself"),
)
def test_the_only_process_is_alone(started: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert (horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size()) == (0, 1, 0, 1)
    tensor = object()
    assert horovod.allreduce(tensor, name="tensor") is tensor
    assert horovod.broadcast(tensor, 0, name="tensor") is tensor


def test_horovodrun_without_horovod_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match=r"rank 1.*Install Horovod"):
        horovod.init()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_of_mpi_do_not_train_apart(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("horovod.tensorflow")
    if library.mpi_built():
        pytest.skip("this Horovod was built with MPI")
    monkeypatch.setenv(variable, "2")
    with pytest.raises(RuntimeError, match='built without MPI.*strategy="horovod"'):
        horovod.init()
