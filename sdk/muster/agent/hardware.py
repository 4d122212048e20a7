"""Resources of this machine: cores, memory and GPUs."""

import os
import re
import shutil
import subprocess

GPU_LINE = re.compile(r"^(?P<indent>\s*)(?:GPU \d+|MIG .*): ?.*\(UUID: (?P<uuid>[\w-]+)\)$")
QUERY_TIMEOUT = 20  # seconds
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> "list[int]":
    """Return the CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the machine's physical memory in bytes, or the limit of the container around this process, if lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical] + _cgroup_limits())


def _cgroup_limits() -> "list[int]":
    found = []
    for path in CGROUP_LIMITS:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdecimal():
            found.append(int(text))
    return found


def gpus() -> "list[str]":
    """Return the UUIDs of the NVIDIA GPUs; of a GPU that is partitioned (MIG), those of its parts."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        listing = subprocess.run(
            [program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=QUERY_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):  # the driver is missing or broken, so no GPU can be used
        return []
    return parse_gpus(listing.stdout.decode("utf-8", "replace"))


def parse_gpus(listing: str) -> "list[str]":
    """Return the UUIDs in the output of ``nvidia-smi -L``."""
    found: "list[str]" = []
    for line in listing.splitlines():
        match = GPU_LINE.match(line)
        if not match:
            continue
        if match.group("indent") and found and found[-1].startswith("GPU-"):
            found.pop()  # the whole GPU, of which this is the first part
        found.append(match.group("uuid"))
    return found
