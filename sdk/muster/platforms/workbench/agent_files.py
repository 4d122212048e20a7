"""The workbench's launch request for one worker, and the files through which session and agent exchange facts.

The files lie beside the worker's log, in a folder that the session and its workers share: ``<log>.launch`` is the
agent's config, which the agent removes when it has read it; ``<log>.news`` holds its messages to the platform.
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
    "host_bootstrap.py",
    "host_guard.py",
    "runner.py",
    "mpi_rank.py",
)  # files of the agent's package that no worker of the workbench needs
VARIABLES = {  # the workbench's environment variables that identify a worker
    "id": "CDSW_ENGINE_ID",
    "address": "CDSW_IP_ADDRESS",
    "session": "CDSW_MASTER_IP",
    "own": "CDSW_",
}
UNCHECKED = b"\1\0\0\0"  # flags of a .pyc file with its source's hash, which is not checked (PEP 552)
LINE = 100  # characters of a line of packed source


def launch_request(spec: WorkerSpec) -> dict[str, Any]:
    """Return the workbench's request for a worker. It holds no secrets, as the workbench shows it to users."""
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
    """Return the source of a program that turns the process that runs it into a worker.

    Args:
        bootstrap: name of the agent's file that defines ``become_worker``.
        arguments: arguments of ``become_worker`` after the first, the context manager that unpacks the agent.
        has_bytecode: whether to include bytecode of this interpreter: three times as much data, but workers with the
            same interpreter start in half the time.
    """
    package = f"unpacked(base64.b64decode('''\n{packed_agent(has_bytecode)}'''), {UNPACKED!r})"
    call = f"become_worker({', '.join([package, *map(repr, arguments)])})\n"
    return "\n\n".join([_text("unpacking.py"), _text(bootstrap), "import base64", call])


@functools.lru_cache
def _text(name: str) -> str:
    return (AGENT / name).read_text(encoding="utf-8")


@functools.lru_cache
def packed_agent(has_bytecode: bool = False) -> str:
    """Return the agent's package, which travels with each worker, as a zip in lines of base64."""
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
    """Return the unchecked bytecode of one of the agent's files, by its name in the package."""
    loader = importlib.machinery.SourceFileLoader(f"agent.{path.stem}", str(path))
    code = loader.get_code(loader.name)
    head = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(path.read_bytes())
    return {f"agent/__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc": head + marshal.dumps(code)}


def config_path(spec: WorkerSpec) -> Path:
    """Return the path of the agent's config."""
    return spec.log.with_name(spec.log.name + ".launch")


def status_path(spec: WorkerSpec) -> Path:
    """Return the path of the file into which the agent writes its messages to the platform."""
    return spec.log.with_name(spec.log.name + ".news")


def write_config(spec: WorkerSpec) -> None:
    """Write the agent's config, for this user only. Raises OSError."""
    config = {**agent_config(spec, default_log_cap()), "news": str(status_path(spec)), "variables": VARIABLES}
    write_private(config_path(spec), json.dumps(config))


def withdraw(spec: WorkerSpec) -> list[str]:
    """Remove the agent's config. Returns the ids of the containers that have already taken it; usually none."""
    try:
        config_path(spec).unlink()
    except OSError:
        return [line["id"] for line in news_of(_news(spec)) if isinstance(line.get("id"), str)]
    return []


def remove_files(spec: WorkerSpec) -> None:
    """Remove the files that session and agent have written for each other."""
    for path in (config_path(spec), status_path(spec)):
        with contextlib.suppress(OSError):  # never written, or removed by the agent
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
