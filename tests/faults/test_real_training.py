"""Kills in the middle of real collectives and real parameter servers, where the survivors fail, too, and say so."""

from __future__ import annotations

import pytest
from muster.errors import RunFailed, WorkerKilled

from tests.faults.scene import Scene, anywhere

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # how soon it is noticed

PROMPT = 1.5  # seconds that noticing may take

ALLREDUCE = """
    import horovod.tensorflow as hvd
    import tensorflow as tf
    hvd.init()
    step = 0
    while True:
        hvd.allreduce(tf.ones(10), name=f"step{step}")
        if step == 3:
            print("ready", flush=True)
        step += 1
    """
PARAMETER_SERVER = """
    import json, os
    import tensorflow as tf
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)
    @tf.function
    def step():
        total.assign_add(1.0)
    for number in range(10**9):
        coordinator.schedule(step)
        coordinator.join()
        if number == 3:
            print("ready", flush=True)
    """


@anywhere
@pytest.mark.parametrize(
    ("script", "victim"),
    [
        pytest.param(ALLREDUCE, "rank 1", marks=pytest.mark.horovod),
        (PARAMETER_SERVER, "process ps-0"),
        (PARAMETER_SERVER, "process worker-0"),
    ],
)
def test_the_one_that_was_killed_is_named_before_those_that_miss_it(scene: Scene, script: str, victim: str) -> None:
    if script == ALLREDUCE:
        cluster, process = scene.start(script, strategy="horovod"), "worker-0"
    else:
        cluster, process = scene.start(script, n_workers=1, n_ps=1, strategy="parameter_server"), "chief-0"
    scene.wait_for_output(process)
    killed = scene.kill(victim)
    with pytest.raises(RunFailed) as raised:
        cluster.wait(timeout=60)
    assert type(raised.value) is WorkerKilled
    assert raised.value.worker == ("worker-1" if victim == "rank 1" else victim.split()[1])
    assert "SIGKILL" in raised.value.message
    assert scene.noticed_after(killed) < PROMPT
