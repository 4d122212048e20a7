"""Set-up of logins without prompts, as ``mpirun`` needs them: key pairs, host keys and ssh's configuration.

Existing keys and the user's settings are never overwritten, no host key is accepted unchecked, and passwords are used
once and not stored.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muster.errors import HostKeyChanged, HostKeyUnknown, JobError, LoginRefused, TrustError
from muster.runtime.extras import extra
from muster.security.ssh import CONNECT_SECONDS, SSH_PORT, generate_key_pair, log_in, ssh_client, write_private

with extra("trust"):
    import paramiko

Accept = Callable[[str, str], bool]  # given a host and its key's fingerprint, tells whether to accept the key

TEST_SECONDS = 60.0
IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
HOST = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.:][A-Za-z0-9_.:-]*")  # it names a file, too, so that it is no `..`
INSTALL = """\
umask 077
mkdir -p ~/.ssh && cd ~/.ssh && touch authorized_keys && chmod 700 . && chmod 600 authorized_keys || exit 1
grep -qxF {key} authorized_keys && exit 0
[ -z "$(tail -c 1 authorized_keys)" ] || echo >> authorized_keys
printf '%s\\n' {key} >> authorized_keys
"""


def accept_known_only(host: str, fingerprint: str) -> bool:
    """Return False, so that only known host keys are accepted."""
    return False


def trust(
    host: str,
    *,
    user: str | None = None,
    port: int = SSH_PORT,
    accept: Accept = accept_known_only,
    ask_password: Callable[[str], str] | None = None,
    folder: Path | None = None,
) -> bool:
    """Set up ``ssh HOST`` to log in without a prompt, and check that it does.

    The host's key must be known or accepted. Where the host refuses our key, our public key is installed there, by a
    login with the ssh agent, with another key, or with a password. ``~/.ssh/config`` is made to include the settings
    for the host, such as its port.

    Args:
        host: name or address of the host.
        user: user to log in as; None for this user's name.
        port: port of its sshd.
        accept: called for a host key that is not known yet.
        ask_password: called for the password of ``user@host`` where no key is accepted; None for no password.
        folder: folder of ssh's files; None for ``~/.ssh``.

    Returns:
        Whether the key had to be installed.

    Raises:
        HostKeyUnknown, HostKeyChanged, LoginRefused: see :mod:`muster.errors`.
        TrustError: the host cannot be reached, or a step failed.
    """
    if not HOST.fullmatch(host):
        raise JobError(f"{host!r} is no name or address of a host.")
    files = SshFolder(folder)
    login = TrustedLogin(host, port, user or getpass.getuser(), accept, files)
    identity, public = files.identity()
    try:
        login.attempt(key_filename=str(identity)).close()
        installed = False
    except LoginRefused as refused:
        _install(login, public, _first_login(login, files.keys_beside(identity), public, ask_password, refused))
        installed = True
    files.write_config(host, port, user, identity)
    check_login(host, folder)
    return installed


def check_login(host: str, folder: Path | None = None, *, user: str | None = None, port: int | None = None) -> None:
    """Log in as ``mpirun`` would: by the ssh client and its configuration, without prompts.

    Args:
        host: name or address of the host.
        folder: folder of ssh's files; None for ``~/.ssh``.
        user, port: user to log in as, and port of its sshd; None for those of the configuration.

    Raises:
        TrustError: the login fails; ``details`` has the output of ssh.
    """
    client = ssh_client()
    if client is None:
        raise TrustError("There is no ssh client here.", advice="install openssh-client")
    config = ["-F", str(SshFolder(folder).config)] if folder else []
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS:.0f}"]
    options += ["-l", user] if user else []
    options += ["-p", str(port)] if port else []
    command = [client, *config, *options, "--", host, "true"]
    where = f"{host}, port {port}," if port else host
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TrustError(f"ssh {host} has not come back after {TEST_SECONDS:.0f} s.") from error
    if done.returncode:
        raise TrustError(
            f"ssh {where} does not log in without a prompt.",
            details=done.stderr or done.stdout,
            advice=_advice_on_login(host, done.stderr, port or _configured_port([client, *config, "-G", "--", host])),
        )


def _advice_on_login(host: str, said: str, port: int) -> str:
    """Return what to try where ssh does not log in: ``muster trust`` only helps where the host answers."""
    again = f"`ssh -v -p {port} {host}`, which shows each step"
    if re.search("Permission denied|Too many authentication|Host key|host key|REMOTE HOST", said):
        return f"muster trust {host} -p {port}; or {again}"
    if "resolve hostname" in said:
        return "a name or address that ssh knows, or an entry for it in ~/.ssh/config"
    return f"see whether its sshd runs, and listens on port {port} (-p another); or {again}"


def _configured_port(command: Sequence[str]) -> int:
    """Return the port that ssh's configuration has for a host; ssh's default where the client does not say it."""
    found = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TEST_SECONDS)
        found = re.search(r"^port (\d+)$", said.stdout, re.MULTILINE)
    return int(found[1]) if found else paramiko.config.SSH_PORT


class SshFolder:
    """The files of the ssh client, by default those in ``~/.ssh``."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh"  # ssh looks there, whatever HOME is
        self.known_hosts = self.path / "known_hosts"
        self.config = self.path / "config"

    def identity(self) -> tuple[Path, str]:
        """Return the path of the private key to log in with, and its public key; make an Ed25519 pair if needed."""
        existing = [self.path / name for name in IDENTITIES if (self.path / name).exists()]
        private = existing[0] if existing else self._make_identity()
        private.chmod(0o600)  # ssh ignores a private key that others can read
        public = private.with_name(f"{private.name}.pub")
        return private, public.read_text().strip() if public.exists() else _public_part(private)

    def keys_beside(self, identity: Path) -> list[Path]:
        """Return the paths of the other private keys."""
        return [path for path in sorted(self.path.glob("id_*")) if path.suffix != ".pub" and path != identity]

    def remember(self, entry: str) -> None:
        """Add a line to the file of known hosts."""
        _append_line(self.known_hosts, entry)

    def write_config(self, host: str, port: int, user: str | None, identity: Path) -> None:
        """Write ssh's settings for a host to a file of its own, which ``config`` includes before everything else."""
        folder = self.path / "muster.d"
        settings = {"Port": port, "User": user, "IdentityFile": f'"{identity}"', "IdentitiesOnly": "yes"}
        settings["UserKnownHostsFile"] = f'"{self.known_hosts}"'
        lines = [f"    {name} {value}\n" for name, value in settings.items() if value is not None]
        write_private(folder / host, f"Host {host}\n{''.join(lines)}")
        include = f'Include "{folder}/*"\n'
        before = self.config.read_text() if self.config.exists() else ""
        if include not in before:
            target = self.config.resolve()  # it may be a link to a file elsewhere
            write_private(target.with_name(f"{target.name}.muster"), include + before).replace(target)

    def _make_identity(self) -> Path:
        private = self.path / IDENTITIES[0]
        public = private.with_name(f"{private.name}.pub")
        if public.exists():
            raise TrustError(f"{public} is there, but not its private key.", advice="move it out of the way")
        pair = generate_key_pair()
        write_private(public, f"{pair.public} {getpass.getuser()}@{os.uname().nodename}\n")
        return write_private(private, pair.private)


class TrustedLogin(paramiko.MissingHostKeyPolicy):
    """Logins to one host, whose key must be known or accepted first."""

    def __init__(self, host: str, port: int, user: str, accept: Accept, files: SshFolder) -> None:
        self.host = host
        self.port = port
        self.user = user
        self._accept = accept
        self._files = files

    def attempt(self, *, allow_agent: bool = False, **proof: Any) -> paramiko.SSHClient:
        """Log in with nothing but ``proof``, and return the client.

        Raises:
            TrustError: the login failed; see :func:`trust`.
        """
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(self)
        with contextlib.ExitStack() as undo:
            undo.callback(client.close)
            try:
                for path in (SYSTEM_KNOWN_HOSTS, self._files.known_hosts):
                    if path.exists():
                        client.load_system_host_keys(str(path))
                log_in(client, self.host, self.port, self.user, allow_agent=allow_agent, **proof)
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self._translated(error) from error
            undo.pop_all()
        return client

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Add an accepted host key to the known hosts, and raise HostKeyUnknown for any other."""
        if not self._accept(self.host, key.fingerprint):
            raise HostKeyUnknown(
                f"{self.host}, port {self.port}, proves itself by a key that is not known here: "
                f"{key.get_name()} {key.fingerprint}",
                advice="compare that with what `ssh-keygen -lf` says of the key on that host, "
                f"/etc/ssh/ssh_host_*_key.pub; then {self._command} --accept {key.fingerprint}",
            )
        self._files.remember(f"{hostname} {key.get_name()} {key.get_base64()}")

    @property
    def _command(self) -> str:
        """The ``muster trust`` command for this host."""
        user = "" if self.user == getpass.getuser() else f" --user {self.user}"
        return f"muster trust {self.host}{user} --port {self.port}"

    def _translated(self, error: Exception) -> TrustError:
        where = f"{self.host}, port {self.port}"
        if isinstance(error, paramiko.BadHostKeyException):
            name = self.host if self.port == paramiko.config.SSH_PORT else f"[{self.host}]:{self.port}"
            return HostKeyChanged(
                f"THE KEY OF {where}, HAS CHANGED: it is {error.key.fingerprint}, and "
                f"{error.expected_key.fingerprint} is known. Somebody may be posing as that host.",
                advice=f"only if it has been set up anew: ssh-keygen -R '{name}', and trust it again",
            )
        if isinstance(error, paramiko.PasswordRequiredException):
            return LoginRefused(
                "The key to log in with has a passphrase, which nobody is there to type when ranks are started.",
                advice="a key without one for these hosts, or add it to an ssh-agent",
            )
        if isinstance(error, paramiko.AuthenticationException) or "No authentication methods" in str(error):
            return LoginRefused(
                f"{where}, does not let {self.user} in.", advice="run it in a terminal, where it can ask for a password"
            )
        return TrustError(f"{where}, cannot be reached over ssh: {error}.", advice="see whether its sshd runs there")


def _first_login(
    login: TrustedLogin,
    keys: list[Path],
    public: str,
    ask_password: Callable[[str], str] | None,
    refused: LoginRefused,
) -> paramiko.SSHClient:
    """Log in by other means than the identity: the ssh agent, other keys, or a password; return the client."""
    try:
        return login.attempt(allow_agent=True, key_filename=[str(key) for key in keys])
    except LoginRefused:
        if ask_password is None:
            raise refused from None
    try:
        return login.attempt(password=ask_password(f"{login.user}@{login.host}"))
    except LoginRefused as refused_password:
        raise LoginRefused(
            refused_password.message,
            advice="the right password; see whether its sshd takes any (PasswordAuthentication, for root "
            f"PermitRootLogin); or add this line to ~/.ssh/authorized_keys there: {public}",
        ) from None


def _install(login: TrustedLogin, public: str, client: paramiko.SSHClient) -> None:
    """Add the public key to the host's authorized keys."""
    problem = f"The key could not be installed on {login.host}"
    try:
        with client:
            stdin, stdout, stderr = client.exec_command("exec sh", timeout=CONNECT_SECONDS)
            stdin.write(INSTALL.format(key=shlex.quote(public)))
            stdin.channel.shutdown_write()
            complaint = stderr.read().decode(errors="replace")
            status = stdout.channel.recv_exit_status()
    except (paramiko.SSHException, OSError) as error:
        raise TrustError(f"{problem}: {error}.") from error
    if status:
        raise TrustError(f"{problem}.", details=complaint)


def _public_part(private: Path) -> str:
    try:
        key = paramiko.PKey.from_path(private)
    except (paramiko.SSHException, TypeError, ValueError) as error:
        raise TrustError(
            f"The key {private} cannot be read: {error}", advice=f"ssh-keygen -y -f {private} > {private}.pub"
        ) from error
    return f"{key.get_name()} {key.get_base64()}"


def _append_line(path: Path, line: str) -> None:
    """Add a line to a file, which may lack its last newline; a new file is readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+b") as file:
        file.seek(0)
        text = file.read()
        file.write(b"\n" * (bool(text) and not text.endswith(b"\n")) + line.encode() + b"\n")
