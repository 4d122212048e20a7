"""The resources of the session's machine: cores, memory, GPUs and sshd."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path

from muster.agent.hardware import cores, gpus, memory_bytes, parse_gpus
from muster.agent.ssh_server import SSHD_PATHS, find_sshd
from muster.errors import PlatformUnsupported, ResourceError
from muster.platforms.base import gpus_in_words
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen

__all__ = ["SshServer", "check_gpus", "cores", "gpus", "memory_bytes", "parse_gpus", "ssh_server"]


@frozen
class SshServer:
    """An sshd: its absolute path, and the version that it prints."""

    path: str
    version: str


def check_gpus(wanted: int, gpus: Sequence[str]) -> None:
    """Raise ResourceError where all workers together ask for more GPUs than this machine has."""
    if wanted > len(gpus):
        raise ResourceError(
            f"The workers ask for {gpus_in_words(wanted)}; this machine has {len(gpus)} (as nvidia-smi -L lists them).",
            advice="fewer workers, or fewer GPUs for each"
            if gpus
            else ArgumentText(Argument("nvidia_gpu", 0), ", which trains on its cores"),
        )


def ssh_server() -> SshServer:
    """Return the sshd of this machine.

    Raises:
        PlatformUnsupported: there is none, or this user could not log in to it. The error says what to do.
    """
    try:
        found = find_sshd(SSHD_PATHS)
    except (OSError, subprocess.SubprocessError) as error:
        raise PlatformUnsupported(f"This machine's sshd cannot be run: {error}.") from error
    if found is None:
        raise PlatformUnsupported(
            "Workers that are reached over ssh need an sshd, and this machine has none.",
            advice="install openssh-server (Debian, Ubuntu: apt-get install openssh-server)",
        )
    _check_account()
    return SshServer(**found)


def _check_account() -> None:
    """Raise PlatformUnsupported unless sshd would let this user log in."""
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise PlatformUnsupported(
            f"The user id {os.geteuid()} has no account on this machine, so sshd cannot log it in.",
            advice="add a line for it to /etc/passwd",
        ) from None
    if Path(user.pw_shell).name in {"nologin", "false"}:
        raise PlatformUnsupported(
            f"The account {user.pw_name} has {user.pw_shell} for a shell, so sshd cannot log it in.",
            advice=f"usermod --shell /bin/sh {user.pw_name}, or run the notebook as another user",
        )
    if _is_locked(user.pw_name):
        raise PlatformUnsupported(
            f"The account {user.pw_name} is locked (its password in /etc/shadow begins with '!'), so sshd refuses it.",
            advice=f"usermod -p '*' {user.pw_name}, which allows keys and still no password",
        )


def _is_locked(name: str) -> bool:
    """Return whether sshd counts the account as locked. Only root can read /etc/shadow, and only root's sshd does."""
    try:
        entries = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(entry.startswith(f"{name}:!") for entry in entries)
