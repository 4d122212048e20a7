"""A real Kubernetes on this machine, of one node, which leaves nothing behind: what ``make kubernetes`` has built.

The cluster's first process has name spaces of its own, and all others are its descendants. A holder starts it: this
file as a program, which waits for the end of its input, and so of the tests, however these end. Then it kills that
first process, and removes the folder, the control groups and the network device.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import io
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from muster.platforms.kubernetes.client import ApiClient, ApiRefused
from muster.platforms.kubernetes.defaults import own_address
from muster.platforms.kubernetes.kubeconfig import find_access

HERE = Path(__file__).parent
GROUPS = Path("/sys/fs/cgroup")
RESTART = """
server=$(cat /run/apiserver.pid)
program=$(readlink /proc/$server/exe)
mapfile -d '' -t words < /proc/$server/cmdline
kill -KILL $server
sleep 1
"$program" "${words[@]:1}" < /dev/null > /dev/null 2>&1 &
echo $! > /run/apiserver.pid
"""
READY_SECONDS = 120.0
IMAGE_OF_GUIDE = "registry.example/me/training:1"  # the same as the next
IMAGE = "muster.test/worker:1"  # has the system's folders only, where pods mount this machine's


class Cluster:
    """A cluster for tests, with a user who may do everything.

    Attributes:
        kubeconfig: path of the file by which it is used.
        client: its client.
        is_own: whether this machine's, started for the tests, rather than one that somebody has named.
        image: image of a worker.
        node: process id of its node; 0 where that is none of this machine's.
    """

    def __init__(self, kubeconfig: str, image: str, is_own: bool, node: int = 0) -> None:
        self.kubeconfig, self.image, self.is_own, self.node = kubeconfig, image, is_own, node
        self.client = ApiClient(find_access(environ={"KUBECONFIG": kubeconfig}))

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace of its own, whose end is not waited for."""
        name = f"muster-test-{secrets.token_hex(4)}"
        self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            until(lambda: is_there(self.client, path), "the namespace has its service account")
            yield name
        finally:
            self.client.delete(f"/api/v1/namespaces/{name}")

    @contextlib.contextmanager
    def without_its_node(self) -> Iterator[None]:
        """The cluster with its kubelet stopped, and pods that nothing reaches, as when a machine is lost."""
        kubelet = self._on_node("cat", "/run/kubelet.pid")
        self._on_node("kill", "-STOP", kubelet)
        self._on_node("ip", "link", "set", "cni0", "down")
        try:
            yield
        finally:
            self._on_node("ip", "link", "set", "cni0", "up")
            self._on_node("kill", "-CONT", kubelet)

    def restart_its_server(self) -> None:
        """Kill the API server, start it again a moment later, and wait until the cluster is ready."""
        self._on_node("bash", "-c", RESTART)
        until(lambda: _is_ready(self.client), "the node is ready", READY_SECONDS)

    @contextlib.contextmanager
    def tainted(self, key: str) -> Iterator[None]:
        """The cluster with a taint on all its nodes, which keeps new pods away that do not tolerate it."""
        self._change_nodes({"taints": [{"key": key, "effect": "NoSchedule"}]})
        try:
            yield
        finally:
            self._change_nodes({"taints": []})

    @contextlib.contextmanager
    def cordoned(self) -> Iterator[None]:
        """The cluster with all its nodes closed to new pods, as ``kubectl drain`` closes one before it evicts pods."""
        self._change_nodes({"unschedulable": True})
        try:
            yield
        finally:
            self._change_nodes({"unschedulable": False})

    @contextlib.contextmanager
    def with_gpus(self, count: int) -> Iterator[None]:
        """The cluster's nodes with GPUs, which only Kubernetes believes in."""
        self._change_status({"nvidia.com/gpu": str(count)})
        try:
            yield
        finally:
            self._change_status({"nvidia.com/gpu": None})

    def _change_status(self, capacity: Mapping[str, str | None]) -> None:
        for node in self.client.get("/api/v1/nodes")["items"]:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            del node["metadata"]["resourceVersion"]
            for kind in ("capacity", "allocatable"):
                node["status"][kind] = {
                    name: amount for name, amount in {**node["status"][kind], **capacity}.items() if amount is not None
                }
            self.client.ask("PUT", path, {**node, "apiVersion": "v1", "kind": "Node"})

    @contextlib.contextmanager
    def with_a_slow_registry(self) -> Iterator[None]:
        """The cluster with a registry of the tests' images, which takes connections and says nothing."""
        folder = f"/run/certs.d/{IMAGE.partition('/')[0]}"
        with socket.create_server((own_address(self.client.access.server), 0)) as registry:
            host, port = registry.getsockname()
            self._on_node("mkdir", folder)
            self._on_node("sh", "-c", f"echo '[host.\"http://{host}:{port}\"]' > {folder}/hosts.toml")
            try:
                yield
            finally:
                self._on_node("rm", "-r", folder)

    def _change_nodes(self, changes: Mapping[str, Any]) -> None:
        for node in self.client.get("/api/v1/nodes")["items"]:
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            del node["metadata"]["resourceVersion"]  # else it would be refused whenever its kubelet reports meanwhile
            spec = {**node["spec"], **changes}
            self.client.ask("PUT", path, {**node, "apiVersion": "v1", "kind": "Node", "spec": spec})

    def _on_node(self, *command: str) -> str:
        enter = ("nsenter", "--target", str(self.node), "--net", "--pid", "--mount")
        return subprocess.run([*enter, *command], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """The pods of a namespace."""
        found: list[dict[str, Any]] = self.client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return found

    def secrets(self, namespace: str) -> list[str]:
        """Names of the Secrets of a namespace that are Muster's."""
        listed = self.client.get(f"/api/v1/namespaces/{namespace}/secrets", labelSelector="muster/owner")
        return [secret["metadata"]["name"] for secret in listed["items"]]

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.client.create(path, body)["status"]["token"])


def is_there(client: ApiClient, path: str) -> bool:
    """Return whether the cluster has something."""
    try:
        client.get(path)
    except ApiRefused:
        return False
    return True


def until(condition: Any, what: str, seconds: float = 60.0) -> Any:
    """Wait until ``condition`` is true, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


@functools.lru_cache(maxsize=1)
def built() -> str:
    """Return the folder in which ``make kubernetes`` puts what it builds."""
    command = ["bash", str(HERE.parents[2] / "scripts" / "kubernetes.sh"), "--where"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@functools.lru_cache(maxsize=1)
def why_none() -> str:
    """Return why this machine can start no cluster; empty where it can."""
    if not os.path.isdir(built()):
        return "no Kubernetes is built here: make kubernetes"
    if os.geteuid() != 0:
        return "a Kubernetes of the tests' own needs root"
    if not (GROUPS / "memory").is_dir():
        return "the Kubernetes that is built for the tests needs control groups of version 1"
    missing = [program for program in ("ip", "unshare", "setpriv", "nsenter") if not shutil.which(program)]
    return f"{missing[0]} is not installed here" if missing else ""


@contextlib.contextmanager
def own_cluster() -> Iterator[Cluster]:
    """A cluster of this machine's own; skips where there can be none."""
    why = why_none()
    if why:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="mk8s-"))
    holder = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        node = holder.stdout.readline().strip()
        assert node, f"the cluster does not start: {_end_of(folder / 'log' / 'node.log')}"
        cluster = Cluster(str(folder / "pki" / "admin.kubeconfig"), IMAGE, is_own=True, node=int(node))
        until(lambda: _is_ready(cluster.client), "the node is ready", READY_SECONDS)
        yield cluster
        cluster.client.close()
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def _is_ready(client: ApiClient) -> bool:
    try:
        node = client.get("/api/v1/nodes/node1")
    except Exception:  # it may not even listen yet
        return False
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or [])


def _end_of(path: Path) -> str:
    return path.read_text()[-2000:] if path.exists() else "it says nothing"


# -- the holder -------------------------------------------------------------------------------------------------------


def hold(folder: Path) -> None:
    """Start a cluster, say so, and end it when the input ends."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    token = secrets.token_hex(3)
    name = f"mk8s{token}"
    net = f"10.{100 + secrets.randbelow(90)}"
    block = 4 * secrets.randbelow(60)
    places = {"HOST": f"{net}.{block}.1", "NODE": f"{net}.{block}.2", "PODS": f"{net}.{block + 1}"}
    places |= {"SERVICES": f"{net}.{block + 2}", "NAME": name, "BUILT": built(), "STATE": str(folder)}
    unshared: subprocess.Popen[bytes] | None = None
    try:
        for part in ("pki", "log", "images"):
            (folder / part).mkdir(mode=0o700)
        write_keys(folder / "pki", places["NODE"], f"{places['SERVICES']}.1")
        write_images(folder / "images")
        _make_groups(name)
        unshared = _start_node(folder, places)
        node = _child_of(unshared.pid)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(node))
        _run("ip", "addr", "add", f"{places['HOST']}/30", "dev", name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "route", "add", f"{places['PODS']}.0/24", "via", places["NODE"])
        print(node, flush=True)
        sys.stdin.read()
    finally:
        if unshared is not None:
            unshared.kill()  # and its child with it, and all that is in there
            unshared.wait()
        subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL)
        _remove_groups(name)
        shutil.rmtree(folder, ignore_errors=True)


def _start_node(folder: Path, places: Mapping[str, str]) -> subprocess.Popen[bytes]:
    unshare = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    command = ["setpriv", "--pdeathsig", "KILL", *unshare, "--propagation", "private", "bash", str(HERE / "node.sh")]
    with (folder / "log" / "node.log").open("wb") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **places, "PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
        )


def _child_of(pid: int) -> int:
    for _ in range(500):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.02)
    raise RuntimeError("the node does not start")


def _groups(name: str) -> Iterable[Path]:
    kinds = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
    return [GROUPS / kind / name for kind in kinds if (GROUPS / kind).is_dir()]


def _make_groups(name: str) -> None:
    for group in _groups(name):
        group.mkdir(exist_ok=True)
    for part in ("cpuset.cpus", "cpuset.mems"):
        (GROUPS / "cpuset" / name / part).write_text((GROUPS / "cpuset" / part).read_text())


def _remove_groups(name: str) -> None:
    for group in [*_groups(name), GROUPS / "unified" / name]:  # the last is the kubelet's own making
        for _ in range(100):
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if not group.exists():
                break
            time.sleep(0.05)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


# -- what a cluster is made of ----------------------------------------------------------------------------------------


def write_keys(folder: Path, node: str, service: str) -> None:
    """Write certificates, keys and kubeconfigs of all parts of a cluster."""
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster-test")])
    root = _certificate(issuer, authority, issuer, authority, [])
    (folder / "ca.crt").write_bytes(root)
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    addresses: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(text)) for text in (node, service, "127.0.0.1")
    ]
    servers = [*addresses, *(x509.DNSName(name) for name in names), x509.DNSName("node1")]
    wanted = {
        "apiserver": ("", "kube-apiserver"),
        "admin": ("system:masters", "admin"),
        "controllers": ("", "system:kube-controller-manager"),
        "scheduler": ("", "system:kube-scheduler"),
        "proxy": ("", "system:kube-proxy"),
        "kubelet": ("system:nodes", "system:node:node1"),
    }
    for part, (group, user) in wanted.items():
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        certificate, private = _certificate(subject, key, issuer, authority, servers), _pem(key)
        (folder / f"{part}.crt").write_bytes(certificate)
        (folder / f"{part}.key").write_bytes(private)
        user_entry = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(private)}
        cluster = {"server": f"https://{node}:6443", "certificate-authority-data": _base64(root)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": part, "user": user_entry}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": part, "namespace": "default"}}],
            "current-context": "test",
        }
        (folder / f"{part}.kubeconfig").write_text(json.dumps(config))
    accounts = rsa.generate_private_key(65537, 2048)
    (folder / "accounts.key").write_bytes(_pem(accounts))
    public = accounts.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "accounts.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, form))


def _certificate(subject: Any, key: Any, issuer: Any, signer: Any, names: list[x509.GeneralName]) -> bytes:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=2))
    builder = builder.add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    if names:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.sign(signer, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def _pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    written: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return written


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write_images(folder: Path) -> None:
    """Write the images that pods have: one that does nothing, and one with empty folders to mount this machine's in."""
    program = (Path(built()) / "tools" / "usr" / "bin" / "catatonit").read_bytes()
    _write_image(folder / "pause.tar", "muster.test/pause:1", [("pause", "file", program)], ["/pause", "-P"])
    passwd = b"root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1000:worker:/muster/home:/bin/sh\n"
    entries: list[tuple[str, str, bytes]] = [
        *((name, "folder", b"") for name in ("usr", "etc", "proc", "sys", "dev", "root", "run", "var", "home", "work")),
        *((name, "link", f"usr/{name}".encode()) for name in ("bin", "sbin", "lib", "lib64")),
        ("tmp", "open", b""),
        ("etc/passwd", "file", passwd),
        ("etc/group", "file", b"root:x:0:\nworker:x:1000:\n"),
    ]
    _write_image(folder / "worker.tar", IMAGE, entries, ["/bin/sh"])
    _write_image(folder / "guide.tar", IMAGE_OF_GUIDE, entries, ["/bin/sh"])


def _write_image(path: Path, name: str, entries: list[tuple[str, str, bytes]], command: list[str]) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for entry, kind, data in entries:
            info = tarfile.TarInfo(entry)
            info.mode = {"open": 0o1777}.get(kind, 0o755)
            if kind in ("folder", "open"):
                info.type = tarfile.DIRTYPE
            elif kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, data.decode()
            info.size = len(data) if kind == "file" else 0
            tar.addfile(info, io.BytesIO(data) if kind == "file" else None)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    variables = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": command, "Env": variables},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    described = json.dumps(config).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        parts = (
            ("config.json", described),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        )
        for entry, data in parts:
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
