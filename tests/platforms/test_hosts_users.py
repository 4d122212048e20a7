"""Several ordinary users of one host over ssh, who share its GPUs and its temporary folder. On real sshds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.errors import LaunchRefused, WorkerLost
from muster.job import Resources
from muster.platforms.hosts.platform import HostsPlatform

from tests.platforms.hosts_network import Host, Network
from tests.support import Run, eventually, first_line, shell

UIDS = {"ann": 54321, "bob": 54322}
WITH_GPU = Resources(cpu=1, memory=0.5, gpu=1)
SHOW = shell("echo $(id -un) has $CUDA_VISIBLE_DEVICES; sleep 600")
# Stands in for a driver that knows two GPUs.
NVIDIA_SMI = '#!/bin/sh\nfor n in 0 1; do echo "GPU $n: Some (UUID: GPU-$n$n)"; done\n'


@pytest.fixture
def host(hosts: Network) -> Iterator[Host]:
    """A host with two users and two GPUs."""
    host = hosts.hosts["h1"]
    host.run("cp /etc/passwd /mnt/passwd && mount --bind /mnt/passwd /etc/passwd && mkdir /mnt/bin")
    host.run(f"cat > /mnt/bin/nvidia-smi << 'end'\n{NVIDIA_SMI}end\nchmod +x /mnt/bin/nvidia-smi")
    for name, uid in UIDS.items():
        host.run(f"echo {name}:x:{uid}:{uid}::/home/{name}:/bin/bash >> /mnt/passwd && mkdir -m 700 /home/{name}")
        host.run(f"echo 'PATH=/mnt/bin:$PATH' > /home/{name}/.bashrc && chown -R {uid}:{uid} /home/{name}")
    yield host
    host.run("umount /etc/passwd && rm -r /home/* /mnt/passwd /mnt/bin")


def test_two_users_of_a_host_do_not_take_the_same_gpu(host: Host, run: Run) -> None:
    ann, bob = (HostsPlatform(hosts=(f"{name}@h1:2",)) for name in UIDS)
    try:
        (first,) = ann.submit([run.spec("worker-0", resources=WITH_GPU, process=SHOW)], "of ann")
        (second,) = bob.submit([run.spec("worker-1", resources=WITH_GPU, process=SHOW)], "of bob")
        assert [first_line(ann, first), first_line(bob, second)] == ["ann has GPU-00", "bob has GPU-11"]
        for platform in (ann, bob):
            with pytest.raises(LaunchRefused, match="too few GPUs are free"):
                platform.submit([run.spec("worker-2", resources=WITH_GPU)], "one more")
        ann.close()
        (third,) = bob.submit([run.spec("worker-2", resources=WITH_GPU, process=SHOW)], "the next")
        assert first_line(bob, third) == "bob has GPU-00"
    finally:
        ann.close()
        bob.close()


@pytest.mark.elsewhere
def test_a_user_whose_host_is_cut_off_keeps_other_logins_there(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import time; print('runs', flush=True); time.sleep(600)")
    with subprocess.Popen(["ssh", "ann@h1", "cat"], stdin=subprocess.PIPE) as other:
        eventually(lambda: "cat" in host.processes(), "the user is logged in")
        its_own = sorted(host.processes())
        assert its_own.count("sshd: ann@notty") == 1
        cluster = muster.run_cluster(
            1, worker_script="train.py", strategy="processes", platform="hosts", hosts=["ann@h1"], memory=0.5,
            lease_seconds=2, tunnel=True, cache=False, wait=False,
        ).cluster  # fmt: skip
        eventually(lambda: "runs" in cluster.logs("worker-0"), "it trains")
        assert host.processes().count("sshd: ann@notty") == 2
        host.cut()
        cut_at = time.monotonic()
        try:
            with pytest.raises(WorkerLost, match="h1"):
                cluster.wait()
            assert time.monotonic() - cut_at < 20 + 5  # the lease is shorter than ssh takes to give up
            eventually(lambda: sorted(host.processes()) == its_own, "all has ended but the other login", timeout=30)
        finally:
            host.plug_in()
            other.terminate()


def test_what_another_user_has_planted_in_the_temporary_folder_is_neither_followed_nor_removed(
    host: Host, run: Run
) -> None:
    host.run("mkdir /home/ann/own && touch /home/ann/own/file && chown -R ann /home/ann/own")
    planted = "ln -s /home/ann/own /tmp/muster-host-aaaaaaaa; mkdir -m 700 /tmp/muster-host-bbbbbbbb"
    host.run(f"setpriv --reuid={UIDS['bob']} --regid={UIDS['bob']} --clear-groups sh -c '{planted}'")
    platform = HostsPlatform(hosts=("ann@h1:1",))
    try:
        platform.submit([run.spec(process=SHOW)], "of ann")
        (folder,) = host.run("find /tmp -maxdepth 1 -user ann").split()
        assert host.run(f"stat -c %a {folder}") == "700\n"
        assert host.run(f"setpriv --reuid={UIDS['bob']} --clear-groups ls {folder} 2>&1 || echo refused").endswith(
            "refused\n"
        )
    finally:
        platform.close()
    assert host.run("ls /home/ann/own") == "file\n"
    assert host.run("ls -d /tmp/muster-host-*").split() == ["/tmp/muster-host-aaaaaaaa", "/tmp/muster-host-bbbbbbbb"]
    host.run("rm -r /tmp/muster-host-*")
