"""Measurement of what a worker's processes use."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support import environment

METER = """
import json, os, resource, subprocess, sys
from muster.agent import usage

class Loop:
    def __init__(self):
        self.calls = {}
    def call_every(self, seconds, function):
        self.calls[seconds] = function

class Rank:
    running = {os.getpid(): None}
    services = {}

told, excesses, loop = [], [], Loop()
limit = 10**12 if len(sys.argv) == 1 else 1
meter = usage.UsageMeter(loop, Rank(), limit, lambda cpu, memory: told.append(memory), excesses.append)
measure, check = loop.calls[usage.REPORT_INTERVAL], loop.calls[usage.CHECK_INTERVAL]
"""
ONE_CHILD = """
measure()
child = [sys.executable, "-c", "held = bytearray(50_000_000); print(flush=True); input()"]
with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    measure()
    process.communicate()
    measure()
print(json.dumps(told))
"""
NO_FILE = """
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    measure(), check()
    assert not told and not excesses
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    measure(), check()
    process.communicate()
print(json.dumps([len(told), len(excesses)]))
"""


def test_what_was_used_last_is_not_overwritten_once_nothing_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", METER + ONE_CHILD], env=environment(), capture_output=True, text=True, check=True
    )
    (used,) = json.loads(done.stdout)
    assert used > 50_000_000


def test_where_no_file_can_be_opened_it_measures_again_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", METER + NO_FILE, "no memory"], env=environment(), stdout=subprocess.PIPE, check=True
    )
    assert json.loads(done.stdout) == [1, 1]
