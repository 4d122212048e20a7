"""A port that the agent holds is still TensorFlow's to take."""

from __future__ import annotations

import sys

import pytest
from muster.job import Resources
from muster.platforms.local import LocalPlatform

from tests.support import Run, StubSession

SERVER = """
import sys, tensorflow as tf
server = tf.distribute.Server({"ps": [f"{sys.argv[1]}:{sys.argv[2]}"]}, job_name="ps", task_index=0)
print("serving", flush=True)
server.join()
"""


@pytest.mark.slow
def test_tensorflow_listens_on_a_held_port(run: Run, stub_session: StubSession) -> None:
    pytest.importorskip("tensorflow")
    platform = LocalPlatform()
    try:
        platform.launch([run.spec(session=stub_session.address, ports=1, resources=Resources(cpu=1, memory=2))])
        hello = stub_session.wait_for("hello")
        (port,) = hello["ports"]
        argv = [sys.executable, "-c", SERVER, hello["host"], str(port)]
        stub_session.send("worker-0", "watch", port=port)
        stub_session.send("worker-0", "start", argv=argv, env={}, cwd=None)
        assert stub_session.wait_for("listening", timeout=60)["port"] == port
    finally:
        platform.close()
