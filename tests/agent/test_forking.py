"""Forks: of an agent by the first process of a pod or of a Slurm task, and those that the kernel refuses."""

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


REFUSED = """
import os, resource, signal, socket
from muster.agent.channels import SocketChannel
from muster.agent.guard import Guard
from muster.agent.processes import spawn

ours, theirs = socket.socketpair()
guard = Guard(SocketChannel(ours))
if os.geteuid() == 0:
    os.setuid(65534)  # no limit holds for root
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
held = os.listdir("/proc/self/fd")
for fork in (lambda: guard._fork_agent({}, ours, theirs), lambda: spawn(["true"], {}, "/", 1)):
    try:
        fork()
    except BlockingIOError:
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.listdir("/proc/self/fd")) - len(held))
"""


def test_a_fork_that_the_kernel_refuses_leaves_no_signal_blocked_and_nothing_open() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "set() 0\n" * 2, "")
