"""A link that is cut without a word, as by a cable that is pulled: in a network of its own, which is taken down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, json, subprocess, sys, time
from pathlib import Path
from listening import Listening, eventually
from muster.agent import frames, link
from muster.agent.loop import Loop
from muster.pools import listener

listener.SILENT_SECONDS = 1
link.SILENCE = 1.0
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
endpoint = Listening(Path(sys.argv[1]), lease_seconds=1.0)
cut, lost, given_up = [], [], []
endpoint.session.on_cut = lambda worker: cut.append(time.monotonic())
endpoint.session.on_lost = lambda worker: lost.append(time.monotonic())
loop = Loop()

def on_lost(cause):
    given_up.append(time.monotonic())
    loop.stop()

agent = link.Link(loop, lambda fields: None, on_lost)
agent.dial(vars(endpoint.address))
agent.introduce(link.wire.Hello(**{key: value for key, value in endpoint.hello().items()}))
loop.call_every(0.1, lambda: agent.send(link.wire.Usage(0.5, 1)))

def pull():
    global pulled
    pulled = time.monotonic()
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)

loop.call_later(2.5, pull)
loop.run()
eventually(lambda: bool(lost), 15)
print(json.dumps({name: times[0] - pulled for name, times in
                  {"cut": cut, "lost": lost, "given up": given_up}.items()}))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root makes networks")
def test_both_sides_notice_and_the_agent_is_gone_first(tmp_path: Path) -> None:
    command = ["unshare", "--net", sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environment)
    if "Operation not permitted" in done.stderr:
        pytest.skip("no network of its own here")
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)
    assert 0.5 < seconds["given up"] < 20, "its lease and what it takes to notice"
    assert seconds["cut"] < 20
    assert seconds["lost"] > seconds["given up"], "the session waits until the agent can only be gone"
