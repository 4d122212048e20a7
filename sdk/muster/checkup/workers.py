"""Checks that need workers: these are launched like those of the job, examined for some seconds, and stopped."""

from __future__ import annotations

import base64
import json
import os
import platform
import pwd
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from muster.agent.removal import remove_folder
from muster.checkup.probe import packages
from muster.checkup.report import Finding, count_of
from muster.checkup.session import LITTLE, needed_of_workers
from muster.errors import ExtraMissing, MusterError
from muster.job import Job, Limits, Member, Plan, Process
from muster.run.checked import CheckedRun
from muster.run.cluster import Cluster
from muster.runtime.extras import extra
from muster.security.ssh import CONNECT_SECONDS, IDENTITY, log_in
from muster.strategies.base import Facts, Strategy
from muster.text.arguments import Argument, ArgumentText
from muster.text.names import join_names

PROBE = Path(__file__).with_name("probe.py")
START_SECONDS = 60.0  # for the start, if the job itself has no limit
ANSWER_SECONDS = 30.0  # for the workers' facts
SSH_AT_ONCE = 16
OTHERS_NAMED = 8
IMPORTANT = {"python", "cloudpickle", "horovod", "keras", "numpy", "tensorflow", "torch"}  # each has its own finding
INSTALL = ArgumentText("the same packages there, or ", Argument("python", ""), " another interpreter of the workers")


class Inspection(Strategy):
    """A strategy that launches workers like the job's own strategy does, but runs the probe on them.

    Attributes:
        members: the workers as their agents reported them.
        identity: path of the private key with which to log in to the workers.
    """

    name: ClassVar[str] = "doctor"

    def __init__(self, strategy: Strategy, imports: Sequence[str] = ()) -> None:
        self._strategy = strategy
        self._imports = imports
        self.members: Sequence[Member] = ()
        self.identity: Path | None = None

    @property
    def requires(self) -> tuple[str, ...]:
        """The packages that the job's strategy requires."""
        return self._strategy.requires

    @property
    def needs_ssh(self) -> bool:
        """True if the job's strategy needs ssh."""
        return self._strategy.needs_ssh

    @property
    def uses_ssh(self) -> bool:
        """True if the job's strategy uses ssh if it can."""
        return self._strategy.uses_ssh

    @property
    def ports_per_worker(self) -> int:
        """Number of ports that the job's strategy needs."""
        return self._strategy.ports_per_worker

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the number of workers of each role in the job's strategy."""
        return self._strategy.roles(job)

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that runs the probe on every worker."""
        self.members, self.identity = members, facts.scratch / IDENTITY
        probe = Process(
            (job.python, "-c", PROBE.read_text(), *self.requires, *self._imports), facts.environment, job.cwd
        )
        names = [member.name for member in members]
        return Plan(processes=dict.fromkeys(names, probe), completed_by=tuple(names))


def probe_workers(checked: CheckedRun) -> list[Finding]:
    """Launch the workers, check what they have, stop them, and remove the folder of that run."""
    strategy = Inspection(checked.strategy, needed_of_workers(checked) if checked.platform.python else ())
    began = time.monotonic()
    seconds = checked.limits.start or START_SECONDS
    try:
        cluster = Cluster.of(
            replace(
                checked.on_new_platform(),
                strategy=strategy,
                limits=Limits(start=seconds, queue=seconds),  # a check must not wait in a queue all night
            )
        )
        try:
            cluster.start()
            took = time.monotonic() - began
            count = count_of(len(strategy.members))
            found = [Finding("ok", "launch", f"{count} came up and reached the session in {took:.1f} s")]
            if strategy.uses_ssh and strategy.identity:
                found += _check_interfaces(strategy.members, checked.strategy)
                found += _check_logins(strategy.members, strategy.identity)
            facts = _await_facts(cluster, strategy.members)
            found += _check_versions(facts, checked.strategy.requires)
            found += _check_compiled(facts)
            if checked.platform.python:  # else the interpreter is this session's, or was examined by other checks
                found += _compare_with_session(facts, checked.job)
            found += _check_facts(facts, strategy.members)
            return found
        finally:
            cluster.stop()
            if cluster.run_id:
                remove_folder(cluster.run_dir)
    except MusterError as error:
        return [Finding.of_error("launch", error, "fewer or smaller workers; muster.stop_workers() ends others")]


def _await_facts(cluster: Cluster, members: Sequence[Member]) -> dict[str, dict[str, Any]]:
    """Wait for the facts that the workers write; return those that came in time, by worker.

    Raises:
        MusterError: a worker has failed.
    """
    paths = {member.name: cluster.run_dir / "results" / f"{member.name}.json" for member in members}
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and not all(path.exists() for path in paths.values()):
        if not cluster.is_running:
            cluster.wait()
        cluster.collect()
        time.sleep(0.02)
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def _check_interfaces(members: Sequence[Member], strategy: Strategy) -> Iterator[Finding]:
    """Check that the same network interface exists on all workers, for launchers that need its name."""
    wanted = strategy.network_interface
    shared = set.intersection(*(set(member.interfaces) for member in members))
    if wanted and wanted not in shared:
        lacking = ", ".join(member.name for member in members if wanted not in member.interfaces)
        yield Finding(
            "error",
            "network",
            f"{lacking} has no interface {wanted}",
            ArgumentText(Argument("network_interface", ""), " one that all have"),
        )
    elif not shared:
        has = "; ".join(f"{member.name} has {', '.join(member.interfaces) or 'none'}" for member in members)
        yield Finding(
            "error",
            "network",
            f"no interface is common to all workers: {has}",
            ArgumentText(Argument("network_interface", "")),
        )
    else:
        yield Finding("ok", "network", f"all workers have {', '.join(sorted(shared))}")


def _check_logins(members: Sequence[Member], identity: Path) -> Iterator[Finding]:
    """Check that the sshd of every worker has the expected host key and accepts the run's key."""
    without = [member for member in members if member.ssh_port is None]
    for member in without:
        text = f"nobody can log in to it: {member.no_ssh}" if member.no_ssh else "it runs no sshd"
        yield Finding("warning", "ssh", text, "none needed: its agent starts the ranks", member.name)
    if without:
        return
    try:
        with extra("trust"):
            import paramiko  # noqa: F401
    except ExtraMissing as error:
        yield Finding("warning", "ssh", f"no login is tried: {error.message}", error.advice or "")
        return
    with ThreadPoolExecutor(SSH_AT_ONCE) as pool:
        failures = list(pool.map(lambda member: _login_failure(member, identity), members))
    for member, failure in zip(members, failures, strict=True):
        if failure:
            text = f"ssh to {member.host}, port {member.ssh_port}, does not work: {failure}"
            yield Finding(
                "error", "ssh", text, "see the worker's log; is the port open between the hosts?", member.name
            )
    if not any(failures):
        yield Finding("ok", "ssh", f"every worker answers on port {members[0].ssh_port}")


def _login_failure(member: Member, identity: Path) -> str:
    """Log in to a worker; return the reason why the login fails, empty if it works."""
    import paramiko

    with paramiko.SSHClient() as client:
        kind, _, key = (member.host_key or "").partition(" ")
        host_key = paramiko.PKey.from_type_string(kind, base64.b64decode(key))
        client.get_host_keys().add(f"[{member.host}]:{member.ssh_port}", kind, host_key)
        user = member.account or pwd.getpwuid(os.geteuid()).pw_name
        try:
            log_in(client, member.host, member.ssh_port or 0, user, key_filename=str(identity))
            _, output, _ = client.exec_command("true", timeout=CONNECT_SECONDS)
            status = output.channel.recv_exit_status()
        except (paramiko.SSHException, OSError, EOFError) as error:
            return str(error) or type(error).__name__
    return f"`true` ended with status {status}" if status else ""


def _check_versions(facts: Mapping[str, Mapping[str, Any]], requires: Sequence[str]) -> Iterator[Finding]:
    """Check that all workers have the same Python and the same packages."""
    versions = {name: {"python": told["python"], **told["packages"]} for name, told in facts.items()}
    differ: dict[str, str] = {}
    for package in sorted({package for has in versions.values() for package in has}):
        by_version: dict[str, list[str]] = {}
        for name, has in versions.items():
            by_version.setdefault(has.get(package, "missing"), []).append(name)
        if len(by_version) > 1:
            differ[package] = "; ".join(f"{version} on {', '.join(names)}" for version, names in by_version.items())
    fix = "the same interpreter, or the same packages, on all of them"
    others = [package for package in differ if package not in IMPORTANT.union(requires)]
    together = others if len(others) > OTHERS_NAMED else []
    for package, text in differ.items():
        if package not in together:
            level = "error" if package in {"python", *requires} else "warning"
            yield Finding(level, "versions", f"{package} is {text}", fix)
    if together:
        shown = join_names(together, most=OTHERS_NAMED)
        yield Finding("warning", "versions", f"other packages that are not the same on all workers: {shown}", fix)
    if not differ and facts:
        python = next(iter(facts.values()))["python"]
        yield Finding("ok", "versions", f"the same Python {python} and packages on all workers")


def _check_compiled(facts: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Check that large packages are compiled: uv compiles none, and in many images Python writes no bytecode."""
    by_worker = {name: told["compiled_anew"] for name, told in facts.items() if told["compiled_anew"]}
    if by_worker:
        named = join_names(sorted(set().union(*by_worker.values())))
        text = (
            f"every process compiles {named} anew, which takes some seconds: "
            f"nothing compiled is installed, and PYTHONDONTWRITEBYTECODE is set (on {join_names(list(by_worker))})"
        )
        fix = "that variable unset; or once `python -m compileall` on the interpreter's site-packages"
        yield Finding("warning", "versions", text, fix)


def _compare_with_session(facts: Mapping[str, Mapping[str, Any]], job: Job) -> Iterator[Finding]:
    """Check that workers whose interpreter is not this session's have the packages of this session."""
    here = {"python": platform.python_version(), **packages()}
    groups: dict[tuple[str, str], list[str]] = {}  # workers by package and the version that they have instead
    for name, told in facts.items():
        for package in told["missing"]:
            yield Finding("error", "versions", f"{job.python} has no {package}", INSTALL, name)
        there = {"python": told["python"], **told["packages"]}
        for package, version in here.items():
            if there.get(package) != version:
                groups.setdefault((package, there.get(package, "missing")), []).append(name)
    told_alone = [pair for pair in groups if pair[0] in IMPORTANT]
    for package, version in sorted(told_alone):
        is_fatal = package == "python" and _is_function(job) and _minor(version) != _minor(here[package])
        where = join_names(groups[package, version])
        text = f"{package} is {here[package]} in this session, and {version} on {where}"
        yield Finding("error" if is_fatal else "warning", "versions", text, INSTALL)
    others = sorted({package for package, _ in groups} - IMPORTANT)
    if others:
        shown = join_names(others, most=OTHERS_NAMED)
        yield Finding("ok", "versions", f"other packages of this session that differ there, or are not there: {shown}")
    if not groups and facts:
        yield Finding("ok", "versions", "the workers have the packages of this session")


def _is_function(job: Job) -> bool:
    return job.script is not None and job.script.kind == "function"


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _check_facts(facts: Mapping[str, Mapping[str, Any]], members: Sequence[Member]) -> Iterator[Finding]:
    """Check that every worker can write to the run's folder, and has room on the disk where its script runs."""
    for name in (member.name for member in members):
        if name not in facts:
            text = f"it wrote nothing into the run's folder within {ANSWER_SECONDS:.0f} s"
            fix = "MUSTER_HOME= a folder that the workers share with the session"
            yield Finding("error", "folders", text, fix, name)
        elif facts[name]["free"] < LITTLE:
            text = f"{facts[name]['free'] / 1e9:.2f} GB are free in {facts[name]['cwd']}"
            yield Finding("warning", "disk", text, "make room there", name)
