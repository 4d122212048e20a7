"""A pool of pods: they stay, and each run has agents of its own in them."""

from __future__ import annotations

import time

import muster
import pytest
from muster.errors import PlatformUnsupported, RunFailed

from tests.platforms.kubernetes.space import Space

TELL = "import os; print(os.uname().nodename, os.getppid(), {!r})\n"


def test_runs_on_the_same_pods_of_which_one_is_deleted(space: Space) -> None:
    with muster.pool(
        2, platform="kubernetes", memory=0.5, cpu=0.1, timeout_seconds=120, dashboard=False, **space.options
    ) as pool:
        told = []
        for word in ("first", "second"):
            (space.folder / "train.py").write_text(TELL.format(word))
            run = pool.run_cluster(
                strategy="processes",
                worker_script="train.py",
                python=space.python,
                dashboard=False,
                timeout_seconds=120,
            )
            told.append([str(run.logs(name)).split()[-3:] for name in ("worker-0", "worker-1")])
        first, second = told
        assert [pod for pod, _, _ in first] == [pod for pod, _, _ in second]
        assert [agent for _, agent, _ in first] != [agent for _, agent, _ in second]
        assert [word for _, _, word in (*first, *second)] == ["first"] * 2 + ["second"] * 2
        waiting = pool.run_cluster(
            strategy="processes", worker_script=lambda: time.sleep(600), dashboard=False, wait=False,
            python=space.python, timeout_seconds=120,
        )  # fmt: skip
        space.cluster.client.delete(f"/api/v1/namespaces/{space.name}/pods/{second[1][0]}")
        with pytest.raises(RunFailed) as raised:
            waiting.wait(90)
        assert raised.value.worker == "worker-1"
    space.wait_until_empty()


def test_where_pods_cannot_dial_the_session_there_is_no_pool(space: Space) -> None:
    with pytest.raises(PlatformUnsupported, match="there are no pools of such workers"):
        muster.pool(1, platform="kubernetes", dashboard=False, **{**space.options, "tunnel": True})
    space.wait_until_empty()
