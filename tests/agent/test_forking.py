"""A process that forks the agent, as the first one of a pod or of a Slurm task does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import muster

PACKAGE = Path(muster.__file__).parent

PROGRAM = """
import os, signal, sys, types
sys.path.append({package!r})
from agent import forking

def worker(config):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGTERM}})
    while True:
        signal.pause()

sys.modules["agent.worker"] = types.SimpleNamespace(main=worker)
fork = os.fork

def fork_and_be_told_to_end():
    pid = fork()
    if pid:
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.fork = fork_and_be_told_to_end
agent = forking.start_agent("config", dict(os.environ))
print(forking.status_of(agent))
"""


def test_what_comes_in_the_instant_after_the_fork_reaches_the_agent() -> None:
    program = [sys.executable, "-I", "-S", "-c", PROGRAM.format(package=str(PACKAGE))]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
