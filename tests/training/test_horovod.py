"""A process alone, and one whose Horovod is missing; ranks that have it are in test_keras.py."""

import sys

import pytest
from muster.training import horovod


@pytest.fixture(autouse=True)
def nobody_started_it(monkeypatch):
    for name in horovod.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", horovod.LAUNCHERS)
def test_the_only_process_is_alone(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    horovod.init()
    assert (horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size()) == (0, 1, 0, 1)
    tensor = object()
    assert horovod.allreduce(tensor, name="tensor") is tensor
    assert horovod.broadcast(tensor, 0, name="tensor") is tensor


def test_horovodrun_without_horovod_is_said(monkeypatch):
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match=r"horovodrun started.*Install Horovod"):
        horovod.init()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_of_mpi_do_not_train_apart(variable, monkeypatch):
    library = pytest.importorskip("horovod.tensorflow")
    if library.mpi_built():
        pytest.skip("this Horovod was built with MPI")
    monkeypatch.setenv(variable, "2")
    with pytest.raises(RuntimeError, match='built without MPI.*strategy="horovod"'):
        horovod.init()
