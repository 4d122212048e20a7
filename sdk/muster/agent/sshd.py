"""A worker's own sshd, on port 2222 of its own address: its configuration, its start, and its end."""

import base64
import collections
import os
import pwd
import re
import struct
import sys

from . import fields, linux
from .loop import Loop
from .package import PROGRAM, program
from .places import write_private
from .ports import free_port, random_loopback_address
from .processes import Children, signal_name, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

PORT = 2222
OTHER_PORT = 2223  # used if another sshd has the first port of a fixed address; after that, any free port
START_TIMEOUT = 10.0  # seconds from start to "Server listening"
ATTEMPTS = 20  # addresses to try
TAIL = 30  # lines of its log that are kept
PRIVILEGE_SEPARATION_FOLDER = "/run/sshd"  # without it, sshd does not start as root

CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {user}
PidFile none
StrictModes no
UsePAM no
UseDNS no
LogLevel INFO
MaxStartups 100:30:200
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
PermitRootLogin prohibit-password
PermitEmptyPasswords no
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PermitTunnel no
AllowTcpForwarding no
AllowStreamLocalForwarding no
AllowAgentForwarding no
X11Forwarding no
{extra}SetEnv SHLVL=2 BASH_ENV=/dev/null MUSTER_RUN_ID={run} MUSTER_WORKER={worker}
ForceCommand exec {entry}
"""
# Of several SetEnv lines sshd takes the first only. SHLVL and BASH_ENV keep bash from reading a slow .bashrc. The shell
# of a login execs the entry rather than forking it, because the entry's parent must be sshd (see entry.py).


class Sshd:
    """The sshd of one worker.

    Args:
        loop: the agent's event loop.
        processes: the agent's processes.
        config: the worker, as its platform describes it.
        on_ready: called with the address once it listens there.
        on_failure: called with what happened, in words, when it cannot listen or ends later.
    """

    def __init__(
        self,
        loop: Loop,
        processes: Children,
        config: "dict[str, Any]",
        on_ready: "Callable[[str], object]",
        on_failure: "Callable[[str], object]",
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._config = config
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._folder = os.path.join(config["scratch"], "ssh")
        self._address = config["address"]
        self.port = PORT
        self.account: "str | None" = None
        self._attempts = 0
        self._ready = False
        self._failed = False
        self._log: "collections.deque[str]" = collections.deque(maxlen=TAIL)
        self._rest = b""
        self._pipe: "int | None" = None
        self._pid = 0
        self.host_key = public_part(config["ssh"]["host_key"])

    def start(self) -> None:
        """Start sshd, without waiting until it listens. Raises OSError where it cannot be started at all."""
        if self._config["sshd"] is None:
            raise OSError("it has no sshd: its image needs openssh-server")
        try:
            name = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError as error:
            raise OSError("the user id {} has no account: sshd lets nobody in".format(os.geteuid())) from error
        # Else those log in by the name that they have themselves.
        self.account = name if re.match(fields.ACCOUNT, name) else None
        if os.geteuid() == 0:
            os.makedirs(PRIVILEGE_SEPARATION_FOLDER, 0o755, exist_ok=True)
        os.makedirs(self._folder, 0o700, exist_ok=True)
        write_private(self._folder, "host_key", self._config["ssh"]["host_key"])
        write_private(self._folder, "authorized_keys", self._config["ssh"]["authorized_key"].strip() + "\n")
        self._loop.call_later(START_TIMEOUT, self._check_start)
        self._try_place()

    def _try_place(self) -> None:
        self._attempts += 1
        self._log.clear()
        self._rest = b""
        write_private(self._folder, "sshd_config", sshd_config(self._config, self._address, self.port, self._folder))
        reader, stderr = os.pipe()
        os.set_blocking(reader, False)
        try:
            environment = {"PATH": os.defpath, "MUSTER_RUN_ID": self._config["run_id"]}
            config = os.path.join(self._folder, "sshd_config")
            pid = spawn([self._config["sshd"]["path"], "-D", "-e", "-f", config], environment, "/", stderr)
        finally:
            os.close(stderr)
        self._pipe = reader
        self._loop.on_readable(reader, self._read_log)
        self._pid = pid
        self._processes.expect_end(pid, self._ended)
        program()  # which logins run; written while sshd starts

    def _read_log(self) -> None:
        if self._pipe is None:
            return
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe()
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            self._log.append(text)
            if text.startswith("Server listening on {} port".format(self._address)):
                self._ready = True
                self._on_ready(self._address)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._loop.forget(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def _ended(self, status: int) -> None:
        self._read_log()  # its last words may not have been read yet
        if not self._ready and "Address already in use" in self._tail() and self._choose_another_place():
            self._close_pipe()
            self._try_place()
        elif os.WIFSIGNALED(status):
            self._fail("its sshd was ended by {}".format(signal_name(os.WTERMSIG(status))))
        else:
            self._fail("its sshd ended by itself")

    def _choose_another_place(self) -> bool:
        """Choose another address or port, as another sshd listens on this one; return whether any may be tried."""
        if self._config["may_move"]:
            self._address = random_loopback_address()
            return self._attempts < ATTEMPTS
        self.port = OTHER_PORT if self.port == PORT else free_port(self._address)
        return self._attempts < ATTEMPTS

    def _check_start(self) -> None:
        if not self._ready:
            self._fail("its sshd did not listen within {:.0f} s".format(START_TIMEOUT))
            linux.kill(self._pid)

    def _fail(self, what: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure("{}; the end of its log:\n{}".format(what, self._tail()))

    def _tail(self) -> str:
        return "\n".join(self._log)


def sshd_config(config: "dict[str, Any]", address: str, port: int, folder: str) -> str:
    """Return the text of sshd_config for a worker."""
    libraries = config["environ"].get("LD_LIBRARY_PATH")  # some interpreters do not even start without it
    setting = ["env", "LD_LIBRARY_PATH={}".format(libraries)] if libraries else []
    entry = setting + [sys.executable, "-I", "-S", PROGRAM, "entry", os.path.join(config["scratch"], "agent.sock")]
    return CONFIG.format(
        port=port,
        address=address,
        folder=folder,
        user=pwd.getpwuid(os.geteuid()).pw_name,
        extra=_extra(version_of(config["sshd"]["version"])),
        run=config["run_id"],
        worker=config["name"],
        entry=" ".join(_quoted(word) for word in entry),
    )


def _extra(version: "tuple[int, int]") -> str:
    """Return the lines of sshd_config for what only newer versions know."""
    lines = ""
    if version >= (9, 0):
        # Its default costs the client 0.1 s of a core for each login, and so for each rank. Without it they agree on
        # X25519, as TLS does between agents and session, or from 9.9 on on ML-KEM with X25519, which is quick.
        lines += "KexAlgorithms -sntrup761*\n"
    if version >= (9, 8):
        # It blocks addresses for a while that it finds suspicious, such as one shared by many workers.
        lines += "PerSourcePenalties no\n"
    return lines


def version_of(text: str) -> "tuple[int, int]":
    """Return the version in the output of ``sshd -V``, such as ``(9, 2)``; ``(0, 0)`` where there is none."""
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def public_part(private_key: str) -> str:
    """Return the public key, ``type base64``, of an unencrypted private key in OpenSSH's own format.

    Raises:
        ValueError: it is in another format.
    """
    body = "".join(line for line in private_key.strip().splitlines() if not line.startswith("-----"))
    data = base64.b64decode(body)
    magic = b"openssh-key-v1\0"
    if not data.startswith(magic):
        raise ValueError("the private key is not in OpenSSH's format")
    offset = len(magic)
    for _ in range(3):  # cipher, key derivation, its options
        _, offset = _field(data, offset)
    blob, _ = _field(data, offset + 4)  # after the number of keys
    kind, _ = _field(blob, 0)
    return "{} {}".format(kind.decode("ascii"), base64.b64encode(blob).decode("ascii"))


def _field(data: bytes, offset: int) -> "tuple[bytes, int]":
    (length,) = struct.unpack_from(">I", data, offset)
    return data[offset + 4 : offset + 4 + length], offset + 4 + length


def _quoted(word: str) -> str:
    return word if re.match(r"^[\w@%+=:,./-]+$", word) else "'" + word.replace("'", "'\"'\"'") + "'"
