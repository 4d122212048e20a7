"""The request for one worker to the workbench, and the files by which session and agent exchange facts about it.

The files lie beside the worker's log, in a folder that the session and its workers share: ``<log>.launch`` is the
agent's config, which the agent takes away; ``<log>.news`` is what it tells the platform.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.machinery
import importlib.util
import io
import json
import marshal
import sys
import zipfile
from pathlib import Path
from typing import Any

from muster.agent.worker import UNPACKED
from muster.job import WorkerSpec
from muster.platforms.agents import LARGEST_NEWS, agent_config, default_log_cap, news_of, outcome_of
from muster.security.ssh import write_private

AGENT = Path(__file__).resolve().parents[2] / "agent"
ELSEWHERE = (
    "bootstrap.py",
    "unpacking.py",
    "slurm_bootstrap.py",
    "hardware.py",
    "host_bootstrap.py",
    "host_guard.py",
    "runner.py",
    "mpi_rank.py",
)  # files of the agent's package that no worker needs
VARIABLES = {  # variables in which the workbench tells a worker who it is
    "id": "CDSW_ENGINE_ID",
    "address": "CDSW_IP_ADDRESS",
    "session": "CDSW_MASTER_IP",
    "own": "CDSW_",
}
UNCHECKED = b"\1\0\0\0"  # in a file of bytecode: there is a hash of its source, which is not compared
LINE = 100  # characters of a line of packed source


def launch_request(spec: WorkerSpec) -> dict[str, Any]:
    """The worker as the workbench wants to have it described. There are no secrets in it, as the workbench shows it."""
    return {
        "kernel": "python3",
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory,
        "nvidia_gpu": spec.resources.gpu,
        "script": "",
        "code": program("bootstrap.py", str(config_path(spec))),
        "env": {},
    }


def program(bootstrap: str, *arguments: str, has_bytecode: bool = False) -> str:
    """Return a program that makes a worker of the process that runs it.

    Args:
        bootstrap: the file with the function ``become_worker`` that does so.
        arguments: of that, beside the first, which unpacks the agent.
        has_bytecode: whether to send what this interpreter has compiled along: three times as much, but where the same
            one runs it needs half the time to start.
    """
    package = f"unpacked(base64.b64decode('''\n{packed_agent(has_bytecode)}'''), {UNPACKED!r})"
    call = f"become_worker({', '.join([package, *map(repr, arguments)])})\n"
    return "\n\n".join([_text("unpacking.py"), _text(bootstrap), "import base64", call])


@functools.lru_cache
def _text(name: str) -> str:
    return (AGENT / name).read_text(encoding="utf-8")


@functools.lru_cache
def packed_agent(has_bytecode: bool = False) -> str:
    """The agent's package as the base64 of a zip, in lines: its source travels with each worker."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(AGENT.glob("*.py")):
            if path.name not in ELSEWHERE:
                files = {f"agent/{path.name}": path.read_bytes(), **(_bytecode(path) if has_bytecode else {})}
                for name, content in files.items():
                    archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    text = base64.b64encode(packed.getvalue()).decode()
    return "".join(f"{text[start : start + LINE]}\n" for start in range(0, len(text), LINE))


def _bytecode(path: Path) -> dict[str, bytes]:
    """Return the bytecode of a file of the agent's, by its name in the package; nothing compares it to the source."""
    loader = importlib.machinery.SourceFileLoader(f"agent.{path.stem}", str(path))
    code = loader.get_code(loader.name)
    head = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(path.read_bytes())
    return {f"agent/__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc": head + marshal.dumps(code)}


def config_path(spec: WorkerSpec) -> Path:
    """Return the path of the agent's config."""
    return spec.log.with_name(spec.log.name + ".launch")


def status_path(spec: WorkerSpec) -> Path:
    """Return the path of the file in which the agent writes its news for the platform."""
    return spec.log.with_name(spec.log.name + ".news")


def write_config(spec: WorkerSpec) -> None:
    """Leave the agent's config for it. Raises OSError."""
    config = {**agent_config(spec, default_log_cap()), "news": str(status_path(spec)), "variables": VARIABLES}
    write_private(config_path(spec), json.dumps(config))


def withdraw(spec: WorkerSpec) -> list[str]:
    """Take back what the agent was to know. Returns the ids of the containers that had taken it before; mostly none."""
    try:
        config_path(spec).unlink()
    except OSError:
        return [line["id"] for line in news_of(_news(spec)) if isinstance(line.get("id"), str)]
    return []


def remove_files(spec: WorkerSpec) -> None:
    """Remove what was left for the agent and by it."""
    for path in (config_path(spec), status_path(spec)):
        with contextlib.suppress(OSError):  # not written, or read by the agent
            path.unlink()


def outcome(spec: WorkerSpec) -> dict[str, Any]:
    """Return the worker's end as its agent told it (``status``, ``exit_code``, ``signal``, ``reason``), or nothing."""
    return outcome_of(_news(spec))


def _news(spec: WorkerSpec) -> bytes:
    try:
        with status_path(spec).open("rb") as file:
            return file.read(LARGEST_NEWS)
    except OSError:
        return b""
