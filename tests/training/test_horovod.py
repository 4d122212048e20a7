"""A process alone, and one whose Horovod is missing; ranks that have it are in test_keras.py."""

import sys

import pytest
from muster.training import horovod


def test_a_process_that_horovodrun_did_not_start_is_alone(monkeypatch):
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    horovod.init()
    assert (horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size()) == (0, 1, 0, 1)
    tensor = object()
    assert horovod.allreduce(tensor, name="tensor") is tensor
    assert horovod.broadcast(tensor, 0, name="tensor") is tensor


def test_horovodrun_without_horovod_is_said(monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match=r"rank 1.*Install Horovod"):
        horovod.init()
