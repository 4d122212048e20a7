"""A worker's look at its own interpreter and its GPUs, before anything is started."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
from muster.agent.cgroup import MemoryKills, own_group
from muster.agent.needs import lacking_gpus, what_lacks

HERE = sys.version_info[:2]


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"packages": ["json"], "version": list(HERE)}, ""),
        ({"packages": ["json", "no_such_thing", "nor.this"]}, "has no no_such_thing and no nor.this here"),
        ({"version": [3, 5]}, "a function of the session's Python 3.5 cannot be sent to it"),
        ({"python": "/no/such/python"}, "There is no /no/such/python here."),
        ({"python": "/bin/false"}, "/bin/false is no usable Python interpreter here"),
        ({"python": "/bin/true"}, "/bin/true is no usable Python interpreter here"),
    ],
)
def test_what_an_interpreter_lacks(needs: dict[str, object], words: str) -> None:
    said = what_lacks({"python": sys.executable, "packages": [], "version": None, **needs}, dict(os.environ))
    assert words in said if words else said == ""


def stand_in(program: Path, listing: str) -> dict[str, str]:
    """Write a program that prints a listing, and return an environment in which it is found."""
    program.write_text(f"#!/bin/sh\necho '{listing}'\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


def test_gpus_that_an_engine_has_not_given(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    environ = stand_in(program, "GPU 0: A100 (UUID: GPU-1)")
    assert lacking_gpus(1, environ) == ""
    assert "2 GPUs and sees 1" in lacking_gpus(2, environ)
    program.unlink()
    assert "1 GPU and sees 0" in lacking_gpus(1, environ)


def test_parts_of_a_gpu_count_as_gpus(tmp_path: Path) -> None:
    listing = """\
        GPU 0: A100 (UUID: GPU-1)
          MIG 1g.5gb      Device  0: (UUID: MIG-a)
          MIG 1g.5gb      Device  1: (UUID: MIG-b)"""
    environ = stand_in(tmp_path / "nvidia-smi", textwrap.dedent(listing))
    assert lacking_gpus(2, environ) == ""
    assert "3 GPUs and sees 2" in lacking_gpus(3, environ)


@pytest.mark.parametrize("text", ["low 0\noom 3\noom_kill {}\n", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"])
def test_kills_for_want_of_memory(tmp_path: Path, text: str) -> None:
    counter, peak = tmp_path / "counter", tmp_path / "peak"
    counter.write_text(text.format(1))
    kills = MemoryKills([str(tmp_path / "none"), str(counter)], [str(peak)])
    assert not kills.has_more()
    assert kills.peak() == 0
    counter.write_text(text.format(2))
    peak.write_text("1000\n")
    assert kills.has_more()
    assert not kills.has_more()
    assert kills.peak() == 1000


@pytest.mark.parametrize(
    ("listing", "group"),
    [
        ("5:devices:/\n4:cpu,memory:/slurm_n2/uid_0/job_4/step_0/task_0\n0::/\n",
         ["/groups/memory/slurm_n2/uid_0/job_4/step_0/task_0"]),
        ("0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_0\n",
         ["/groups/system.slice/slurmstepd.scope/job_4/step_0/user/task_0"]),
        ("4:memory:/\n1:cpuset:/slurm_n2/uid_0/job_4/step_0\n0::/system.slice/slurmd.service\n", []),
    ],
)  # fmt: skip
def test_a_group_counts_where_slurm_has_made_it(tmp_path: Path, listing: str, group: list[str]) -> None:
    (tmp_path / "cgroup").write_text(listing)
    assert own_group("/step_", str(tmp_path / "cgroup"), "/groups") == group
    assert own_group("/step_", str(tmp_path / "none"), "/groups") == []
    assert MemoryKills.of(None) is None
    assert MemoryKills.of("/no such step") is None
