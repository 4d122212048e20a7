"""Key pairs, such as a run's identity and its workers' host keys, and logins with them."""

from __future__ import annotations

import logging
import os
import pwd
import shutil
from dataclasses import field
from pathlib import Path
from typing import Any

from muster.text.frozen import frozen

SSH_PORT = 2222
IDENTITY = "identity"  # file with a run's private key
CONNECT_SECONDS = 10.0  # for each step of a login

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors are raised as well


@frozen
class KeyPair:
    """An Ed25519 key pair as OpenSSH writes it. ``public`` is ``type base64``, without a comment."""

    private: str = field(repr=False)
    public: str


def generate_key_pair() -> KeyPair:
    """Return a new key pair, made in this process: eight take a millisecond, and none is written to a disk."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode())


def write_private(path: Path, text: str) -> Path:
    """Write ``text`` to a file that only its owner can read; executable for the owner if it is a program."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if text.startswith("#!") else 0o600
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def log_in(client: Any, host: str, port: int, user: str, *, allow_agent: bool = False, **proof: Any) -> None:
    """Have a ``paramiko.SSHClient`` log in with nothing but ``proof``. Raises what its ``connect`` raises."""
    client.connect(
        host, port, user, allow_agent=allow_agent, look_for_keys=False,
        timeout=CONNECT_SECONDS, banner_timeout=CONNECT_SECONDS, auth_timeout=CONNECT_SECONDS, **proof,
    )  # fmt: skip


def ssh_client() -> str | None:
    """Return the path of the ssh client; None where there is none."""
    return shutil.which("ssh")


def reason_against_client(client: str | None) -> str:
    """Return, in words, why this user cannot run an ssh client; empty if that is possible.

    Args:
        client: path of the ssh client; None where there is none.
    """
    if client is None:
        return "there is no ssh client here"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"the user id {os.getuid()} has no account here, and ssh runs for nobody without one"
    return ""
