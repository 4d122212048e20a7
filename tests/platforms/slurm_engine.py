"""A real Slurm of the tests' own: munged, slurmctld and a slurmd for each of some nodes, on this machine.

The programs are Debian's, fetched once and unpacked into a cache; nothing is installed. Everything runs in a namespace
of process ids, whose first process ends with the tests, and all others with it. Each node has a network namespace with
an address of its own and a host name, and sees this machine's files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from muster.agent import linux
from muster.agent.removal import NAMED, remove_unused
from muster.agent.worker import UNPACKED
from muster.security.ssh import write_private

from tests.support import eventually

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
# Further packages for accounting: slurmdbd, MariaDB, and the libraries that these are linked with.
ACCOUNTING_PACKAGES = (
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "libmariadb3", "libaio1", "liburing2", "libsnappy1v5",
    "liblz4-1",
)  # fmt: skip
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr", "salloc")
FETCH_SECONDS, START_SECONDS, END_SECONDS = 120, 60, 60
CPUS, MEMORY = 4, 8000
USER = 54321
TREE = Path(__file__).resolve().parents[2]
PROBE = "mount --make-rprivate / && mount --bind /etc/hosts /etc/hosts && ip link add br0 type bridge"
DAEMONS = ("munged", "slurmctld-wlm", "slurmd-wlm")
ACCOUNTING_DAEMONS = ("mariadbd",)  # not slurmdbd, which cannot print its version without a configuration
PROGRAMS = ("unshare", "nsenter", "ip", "apt-get", "dpkg", "apt-cache")

CONFIG = """\
ClusterName=tests
SlurmctldHost={host}({subnet}.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
PluginDir={plugins}
PlugStackConfig={folder}/none
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
{gather}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType={preempt}
PreemptMode=CANCEL
SlurmdParameters=config_overrides
{accounting}
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=5
KillWait=2
UnkillableStepTimeout=10
CompleteWait=0
MinJobAge={remembered}
{gpus}{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime={minutes} PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10
PartitionName=alone Nodes=ALL MaxTime=60 OverSubscribe=EXCLUSIVE
"""
GPUS_CONFIG = """\
GresTypes=gpu
PartitionName=gpu Nodes=ALL MaxTime=INFINITE
PartitionName=cpu Nodes=ALL MaxTime=INFINITE
"""
ACCOUNTING_CONFIG = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port_of_accounting}
AccountingStoragePass={folder}/munge/socket
AccountingStorageEnforce=associations,limits,qos"""
DAEMON_CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port_of_accounting}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
PluginDir={plugins}:{accounts}/slurm-wlm
"""
# MariaDB asks for no password; its socket is in a folder that only root can read. Its system tables are made first:
# Slurm keeps a procedure there, without which no user inherits the QOS of an account.
ACCOUNTING_SETUP = """\
export LD_LIBRARY_PATH={plugins}:{accounts} MYSQL_UNIX_PORT={folder}/database.socket
mkdir -p {folder}/database/mysql
database() {{
    {accounting_root}/usr/sbin/mariadbd --no-defaults --basedir={accounting_root}/usr --datadir={folder}/database \\
        --lc-messages-dir={accounting_root}/usr/share/mysql --plugin-dir={folder} --user=root --skip-log-bin \\
        --innodb-buffer-pool-size=16M --innodb-log-file-size=4M --innodb-use-native-aio=0 --innodb-doublewrite=0 \\
        --innodb-flush-log-at-trx-commit=0 "$@"
}}
(echo 'use mysql;'; cat {accounting_root}/usr/share/mysql/mysql_system_tables.sql) | database --bootstrap
database --skip-grant-tables --skip-networking --socket={folder}/database.socket &
until [ -S {folder}/database.socket ]; do sleep 0.02; done
SLURM_CONF={folder}/slurm.conf {accounting_root}/usr/sbin/slurmdbd -D &
until {folder}/bin/sacctmgr -n show cluster >/dev/null 2>&1; do sleep 0.1; done
{folder}/bin/sacctmgr -i add cluster tests
{folder}/bin/sacctmgr -i add qos first Priority=100
{folder}/bin/sacctmgr -i add qos single MaxJobsPerUser=1
{folder}/bin/sacctmgr -i modify qos first set Preempt=normal
{folder}/bin/sacctmgr -i modify account root set qos+=first,single
"""
OVER_MEMORY = """\
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill"""
# An account, which may read this tree, and what it needs of root's home: the interpreter and the unpacked packages.
USER_SETUP = """\
mkdir -p {folder}/tree {folder}/root {places}
mount --bind {tree} {folder}/tree
{mounts}
mount --rbind {folder}/root {home}
mount --bind {folder}/passwd /etc/passwd
"""
SETUP = """\
set -e
ulimit -c 0
mount --make-rprivate /
mount --bind {folder}/hosts /etc/hosts
{user_setup}own=$(readlink /proc/self/ns/net)
apart() {{ until [ "$(readlink /proc/$1/ns/net)" != "$own" ]; do sleep 0.01; done; }}
unshare --net sleep infinity & switch=$!
apart $switch
echo $switch > {folder}/switch
nsenter -t $switch -n ip link add br0 type bridge
nsenter -t $switch -n ip link set br0 up
ip link add {veth} type veth peer name port1 netns $switch
nsenter -t $switch -n ip link set port1 master br0 up
ip addr add {subnet}.1/24 dev {veth}
ip link set {veth} up
{root}/usr/sbin/munged --foreground --key-file={folder}/munge/key --socket={folder}/munge/socket \\
    --pid-file={folder}/munge/pid --log-file={folder}/munge/log --seed-file={folder}/munge/seed --force &
until [ -S {folder}/munge/socket ]; do sleep 0.01; done
{accounting_setup}{folder}/sbin/slurmctld -D -f {folder}/slurm.conf &
number=2
for node in {names}; do
    unshare --net --uts sh -c "until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done; ip link set lo up
        ip addr add {subnet}.$number/24 dev eth0; ip link set eth0 up; hostname $node; export LD_LIBRARY_PATH={plugins}
        exec {folder}/sbin/slurmd -D -N $node -f {folder}/slurm.conf -d {folder}/sbin/slurmstepd" &
    apart $!
    ip link add eth0 netns $! type veth peer name port$number netns $switch
    nsenter -t $switch -n ip link set port$number master br0 up
    number=$((number + 1))
done
echo ready
wait
"""


def why_not() -> str:
    """Return why there can be no Slurm here; an empty string if there can be one."""
    if os.geteuid():
        return "a Slurm of the tests' own needs root"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"{missing[0]} is not installed here"
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", PROBE], capture_output=True)
    return "root may make no namespaces, mounts or bridges here" if tried.returncode else ""


@functools.lru_cache(maxsize=1)
def fetch() -> Path | None:
    """Return the folder in which Debian's packages of Slurm are unpacked, or None if they cannot be fetched or run."""
    return _unpacked("slurm", PACKAGES, DAEMONS, [])


@functools.lru_cache(maxsize=1)
def fetch_accounting() -> Path | None:
    """Return the folder in which the packages for accounting are unpacked, or None as ``fetch`` does."""
    root = fetch()
    return _unpacked("slurm-accounting", ACCOUNTING_PACKAGES, ACCOUNTING_DAEMONS, [root]) if root else None


def _unpacked(name: str, packages: Sequence[str], daemons: Sequence[str], others: Sequence[Path]) -> Path | None:
    shown = subprocess.run(["apt-cache", "policy", PACKAGES[0]], capture_output=True, text=True).stdout
    version = shown.partition("Candidate:")[2].split()
    if not version or version[0] == "(none)":
        return None
    root = CACHE / f"{name}-{version[0].replace('/', '_')}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as made:
            folder = Path(made)
            with contextlib.suppress(subprocess.SubprocessError):
                fetched = ["apt-get", "download", "-q", *packages]
                subprocess.run(fetched, cwd=folder, check=True, capture_output=True, timeout=FETCH_SECONDS)
                for package in folder.glob("*.deb"):
                    subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
                with contextlib.suppress(OSError):  # other tests have made it meanwhile
                    (folder / "root").rename(root)
    return root if root.exists() and _starts([root / "usr/sbin" / each for each in daemons], [root, *others]) else None


def _starts(daemons: Sequence[Path], roots: Sequence[Path]) -> bool:
    """Return whether the libraries that daemons are linked with are on this machine or among the unpacked files."""
    patterns = ("usr/lib/*-linux-gnu*", "usr/lib/*/slurm-wlm")
    folders = [path for root in roots for pattern in patterns for path in root.glob(pattern)]
    environ = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}
    return not any(subprocess.run([each, "-V"], env=environ, capture_output=True).returncode for each in daemons)


class Engine:
    """A running Slurm.

    Args:
        root: folder of the unpacked packages.
        names: names of its nodes.
        accounting: folder of the packages for accounting; None for a Slurm without it.
        cpus, memory, gpus: CPUs, MiB of memory and GPUs of each node, which only Slurm believes in. With GPUs there are
            the partitions ``gpu`` and ``cpu``, and jobs may take any time.
        has_cgroups: whether its nodes limit the memory of each step by a control group, which is named after the node.
        has_user: whether there is an ordinary user, with whose rights ``as_user`` runs programs.

    Attributes:
        folder: folder of all its files.
        subnet: the first three numbers of all addresses of its network.
        address: this machine's address, as its nodes see it.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str] = ("n1", "n2"),
        *,
        accounting: Path | None = None,
        cpus: int = CPUS,
        memory: int = MEMORY,
        gpus: int = 0,
        has_cgroups: bool = False,
        has_user: bool = False,
    ) -> None:
        self.names = names
        self._has_cgroups = has_cgroups
        self._off: dict[str, tuple[list[str], int, subprocess.Popen[bytes]]] = {}
        self._restarted: list[subprocess.Popen[bytes]] = []
        self._not_musters: set[str] = set()
        self.folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
        plugins = next(root.glob("usr/lib/*/slurm-wlm"))
        subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self.subnet, self.address = subnet, f"{subnet}.1"
        for name in ("munge", "state", *names):
            (self.folder / name).mkdir(mode=0o755 if has_user else 0o700)
        (self.folder / "munge" / "key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge" / "key").chmod(0o400)
        nodes = [
            f"NodeName={name} NodeHostname={os.uname().nodename} NodeAddr={subnet}.{number} Port=16818 CPUs={cpus} "
            f"RealMemory={memory}{f' Gres=gpu:{gpus}' if gpus else ''}"
            for number, name in enumerate(names, 2)
        ]
        facts = {
            "host": os.uname().nodename, "subnet": subnet, "port": 16000 + secrets.randbelow(8000), "root": root,
            "folder": self.folder, "plugins": plugins, "veth": f"mss{secrets.token_hex(3)}", "names": " ".join(names),
            "accounting": "AccountingStorageType=accounting_storage/none", "accounting_setup": "",
            "preempt": "preempt/partition_prio", "remembered": 300, "gather": "JobAcctGatherType=jobacct_gather/none",
            "task": "task/cgroup" if has_cgroups else "task/none", "user_setup": self._with_user() if has_user else "",
            "minutes": "INFINITE" if gpus else 60, "gpus": GPUS_CONFIG if gpus else "",
        }  # fmt: skip
        if accounting:
            facts.update(self._with_accounting(accounting, facts))
        (self.folder / "slurm.conf").write_text(CONFIG.format(nodes="\n".join(nodes), **facts))
        known = ["127.0.0.1 localhost", *(f"{subnet}.{number} {name}" for number, name in enumerate(names, 2))]
        (self.folder / "hosts").write_text("\n".join([*known, f"{self.address} {os.uname().nodename}", ""]))
        for number in range(gpus):  # slurmd looks whether a GPU's file is there
            (self.folder / f"gpu{number}").touch()
        each = f"Name=gpu File={self.folder}/gpu[0-{gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(each if gpus else "")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n")
        (self.folder / "sbin").mkdir()
        for name in ("slurmctld", "slurmd", "slurmstepd"):  # Slurm knows its daemons by these names alone
            (self.folder / "sbin" / name).symlink_to(root / "usr/sbin" / f"{name}-wlm")
        for command in COMMANDS:
            program = f"#!/bin/sh\necho {command} >> {self.folder}/asked\n"
            program += f"export LD_LIBRARY_PATH={plugins} SLURM_CONF={self.folder}/slurm.conf\n"
            write_private(self.folder / "bin" / command, f'{program}exec {root}/usr/bin/{command} "$@"\n')
        if has_user:
            (self.folder / "asked").touch()
            (self.folder / "asked").chmod(0o666)
            for path in (self.folder, self.folder / "bin", *(self.folder / "bin").iterdir()):
                path.chmod(0o755)
        self._start(SETUP.format(**facts), plugins)

    def _with_user(self) -> str:
        """Make the ordinary user's home, and return the commands that make the account."""
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        os.chown(home, USER, USER)
        account = f"somebody:x:{USER}:{USER}::{home}:/bin/sh\n"
        (self.folder / "passwd").write_text(Path("/etc/passwd").read_text() + account)
        within = Path.home()
        needed = [path for path in (CACHE, Path(sys.base_prefix)) if path.is_relative_to(within)]
        places = [f"{self.folder}/root/{path.relative_to(within)}" for path in needed]
        mounts = "\n".join(f"mount --bind {path} {place}" for path, place in zip(needed, places, strict=True))
        return USER_SETUP.format(folder=self.folder, tree=TREE, places=" ".join(places), mounts=mounts, home=within)

    def as_user(self, program: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a Python program in the home of the ordinary user, with that user's rights."""
        home, tree = self.folder / "home", self.folder / "tree"
        python = sys.executable.replace(str(TREE), str(tree))
        variables = {"HOME": str(home), "PATH": self.path, "PYTHONPATH": f"{tree}/sdk"}
        return subprocess.run(
            [*self.inside, f"--wd={home}", "setpriv", f"--reuid={USER}",
             f"--regid={USER}", "--clear-groups", python, "-"],
            input=program, capture_output=True, text=True, timeout=timeout, env=variables,
        )  # fmt: skip

    @property
    def inside(self) -> list[str]:
        """The command that runs another one among the processes of this Slurm, with its view of the files."""
        (first,) = psutil.Process(self._process.pid).children()
        return ["nsenter", "--target", str(first.pid), "--mount", "--pid"]

    def _with_accounting(self, accounting: Path, facts: Mapping[str, object]) -> dict[str, object]:
        """Return settings for accounting, preemption by QOS, forgetting ended jobs soon, and limits of memory."""
        own = {
            "port_of_accounting": 24000 + secrets.randbelow(6000), "accounting_root": accounting,
            "accounts": next(accounting.glob("usr/lib/*-linux-gnu*")),
        }  # fmt: skip
        write_private(self.folder / "slurmdbd.conf", DAEMON_CONFIG.format(**facts, **own))
        return {
            "accounting": ACCOUNTING_CONFIG.format(**facts, **own),
            "accounting_setup": ACCOUNTING_SETUP.format(**{**facts, **own}), "preempt": "preempt/qos", "remembered": 2,
            "gather": OVER_MEMORY,
        }  # fmt: skip

    def _start(self, script: str, plugins: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "SLURM"))}
        self._environment = {**own, "LD_LIBRARY_PATH": str(plugins), "SLURM_CONF": f"{self.folder}/slurm.conf"}
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment,
                preexec_fn=lambda: linux.signal_at_parent_death(signal.SIGKILL),
            )
        eventually(self._is_up, "all nodes are idle", START_SECONDS)

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"Slurm ended: {(self.folder / 'log').read_text()[-1000:]}")
        if "ready" not in (self.folder / "log").read_text(errors="replace"):
            return False
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        time.sleep(0.05)
        return states == ["idle"] * len(self.names)

    @property
    def path(self) -> str:
        """A search path on which Slurm's commands are those of this Slurm."""
        return os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])

    def run(self, command: str, *arguments: str, check: bool = True, given: str | None = None) -> str:
        """Run one of Slurm's commands, and return its output."""
        done = subprocess.run(
            [str(self.folder / "bin" / command), *arguments],
            input=given, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0 or not check, (command, arguments, done.stderr)
        return done.stdout

    def submit(self, *arguments: str, command: str = "sleep 600") -> str:
        """Submit a job that does not belong to Muster, and return its id."""
        given = f"#!/bin/sh\n{command}\n"
        job = self.run("sbatch", "--parsable", "--output=/dev/null", *arguments, given=given).strip()
        self._not_musters.add(job)
        return job

    def jobs(self) -> list[str]:
        """Return the ids of jobs that have not ended."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def left_behind(self) -> list[str]:
        """Return the ids of Muster's jobs that have not ended."""
        return [job for job in self.jobs() if job not in self._not_musters]

    def asked(self) -> list[str]:
        """Return the commands that have been run, in order."""
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    def daemon_of(self, node: str) -> int:
        """Return the process id on this machine of a node's slurmd."""
        for pid in linux.all_pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                wanted = [b"-D", b"-N", node.encode(), b"-f", f"{self.folder}/slurm.conf".encode()]
                if words[0].endswith(b"/slurmd") and words[1:6] == wanted:
                    return pid
        raise AssertionError(f"no slurmd of {node}")

    def power_off(self, node: str) -> None:
        """Kill all processes on a node, its slurmd first; its network stays."""
        daemon = self.daemon_of(node)
        network = os.readlink(f"/proc/{daemon}/ns/net")
        command = Path(f"/proc/{daemon}/cmdline").read_bytes().decode().strip("\0").split("\0")
        inside = ["nsenter", "--target", str(daemon), "--net", "--uts", "--mount"]
        keeper = subprocess.Popen([*inside, "sleep", "600"])
        eventually(lambda: os.readlink(f"/proc/{keeper.pid}/ns/net") == network, "its network is kept")
        self._off[node] = (command, os.open(f"/proc/{daemon}/ns/pid", os.O_RDONLY), keeper)
        # All are stopped first, so that none learns of another's end and reports it, as in a loss of power.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in [daemon, *(pid for pid in linux.all_pids() if pid != keeper.pid)]:
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/ns/net") == network:
                        os.kill(pid, number)

    def is_off(self, node: str) -> bool:
        """Return whether ``power_off`` was called for a node, and ``power_on`` not yet."""
        return node in self._off

    def power_on(self, node: str) -> None:
        """Start a node's slurmd again."""
        command, pids, keeper = self._off.pop(node)
        inside = ["nsenter", "--target", str(keeper.pid), "--net", "--uts", "--mount", f"--pid=/proc/self/fd/{pids}"]
        with (self.folder / "log").open("ab") as log:
            self._restarted.append(
                subprocess.Popen(
                    [*inside, *command], stdout=log, stderr=log, env=self._environment, pass_fds=[pids], cwd=self.folder
                )
            )
        eventually(self._is_up, "the node is back", START_SECONDS)
        os.close(pids)
        keeper.kill()
        keeper.wait()

    def expect_nothing_left(self) -> None:
        """Fail unless all of Muster's jobs have ended, or end in a moment; clean up in any case."""
        try:
            eventually(lambda: self.left_behind() == [], "no job of Muster's is left", END_SECONDS)
        finally:
            self.clean()

    def clean(self) -> None:
        """Cancel all jobs, and remove folders of workers that Slurm killed, as the user's next worker would."""
        jobs = self.jobs()
        if jobs:
            self.run("scancel", *jobs, check=False)
            eventually(lambda: not self.jobs(), "all jobs are gone", 20)
        around = Path(tempfile.gettempdir())

        def is_swept() -> bool:
            for node in around.glob(f"{UNPACKED}????????-*"):
                remove_unused(str(node)[:-NAMED] + "0" * NAMED)
            return not [*around.glob(f"{UNPACKED}*")]

        if around != Path("/tmp"):  # other tests use /tmp, too
            eventually(is_swept, "what workers have left that were killed is removed", 20)

    def _has_no_groups(self) -> bool:
        """Remove the control groups that the nodes have made, and return whether none is left."""
        groups = [Path("/sys/fs/cgroup/memory", f"slurm_{name}") for name in self.names]
        for folder in (Path(path) for group in groups for path, _, _ in os.walk(group, topdown=False)):
            with contextlib.suppress(OSError):  # the group still has a process
                folder.rmdir()
        return not any(group.exists() for group in groups)

    def remove(self) -> None:
        """End all processes of this Slurm, and remove its files."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for process in [self._process, *self._restarted]:
            process.wait(10)
        if self._has_cgroups:
            eventually(self._has_no_groups, "its control groups are empty, and removed", 20)
        shutil.rmtree(self.folder, ignore_errors=True)
