"""Measurement of what a worker's processes use."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support import environment

PROGRAM = """
import json, subprocess, sys
from muster.agent import usage

class Loop:
    def __init__(self):
        self.calls = {}
    def call_every(self, seconds, function):
        self.calls[seconds] = function

class Nobody:
    running = services = {}

told, loop = [], Loop()
meter = usage.UsageMeter(loop, Nobody(), 10**12, lambda cpu, memory: told.append(memory), None)
measure = loop.calls[usage.REPORT_INTERVAL]
measure()
child = [sys.executable, "-c", "held = bytearray(50_000_000); print(flush=True); input()"]
with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    measure()
    process.communicate()
    measure()
print(json.dumps(told))
"""


def test_what_was_used_last_is_not_overwritten_once_nothing_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(), capture_output=True, text=True, check=True
    )
    (used,) = json.loads(done.stdout)
    assert used > 50_000_000
