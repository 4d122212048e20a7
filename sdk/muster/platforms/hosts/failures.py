"""Errors made from the output of ssh and of a host's shell: the host, what happened, and what to try."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.errors import HostKeyChanged, HostKeyUnknown, HostUnreachable, LoginRefused, MusterError


class HostBusy(HostUnreachable):
    """The host, or one that is jumped through, has hung up before it took a login; it may take one a moment later."""


Kind = type[HostUnreachable] | type[HostKeyUnknown] | type[HostKeyChanged] | type[LoginRefused]

# Pattern of the output, error class, its message and advice; {0} is the host, {1} the text that matched.
KNOWN: tuple[tuple[str, Kind, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        HostKeyChanged,
        "THE KEY OF {0} HAS CHANGED. Somebody may be posing as that host.",
        "only if it has been set up anew: ssh-keygen -R {0}, and {trust}",
    ),
    (
        r"Host key verification failed|host key is known",
        HostKeyUnknown,
        "The key of {0} is not known here.",
        "{trust}, or `ssh {0}` in a terminal, which shows the key and asks",
    ),
    (
        r"Permission denied[^\n]*|Too many authentication failures",
        LoginRefused,
        "{0} does not let you in: {1}.",
        "{trust}, which installs your key there; `ssh -v {0}` shows what is tried",
    ),
    (
        r"Could not resolve hostname [^\n]*",
        HostUnreachable,
        "There is no host {0}: {1}.",
        "the name as ssh knows it, or an entry for it in ~/.ssh/config",
    ),
    (
        r"Connection refused",
        HostUnreachable,
        "{0} refuses connections for ssh.",
        "see whether its sshd runs, and on which port: a Port for it in ~/.ssh/config",
    ),
    (
        r"Connection timed out|No route to host|Network is unreachable|Operation timed out|timed out",
        HostUnreachable,
        "{0} does not answer: {1}.",
        "see whether it is on, and whether a firewall or a VPN lies between",
    ),
    (
        r"muster: python3 is Python ([\d.]+)",
        HostUnreachable,
        "python3 on {0} is too old: {1}.",
        "Muster's agent needs Python 3.6 or later as python3 there",
    ),
    (
        r"python3: (?:command )?not found|python3: No such file|[Uu]nknown command: '?python3|python3: inaccessible",
        HostUnreachable,
        "There is no python3 on {0}, which Muster's agent needs.",
        "install it there (Debian, Ubuntu: apt-get install python3-minimal), or put it on the PATH of `ssh {0} env`",
    ),
    (
        r"muster: the agent cannot be put into [^\n]*",
        HostUnreachable,
        "{0}: {1}.",
        "make room there, or set TMPDIR for logins to another folder",
    ),
    (
        r"Bad owner or permissions on [^\n]*|Bad configuration option[^\n]*|line \d+: [^\n]*",
        HostUnreachable,
        "ssh cannot be used for {0}: {1}.",
        "fix ssh's configuration",
    ),
    (  # the last, as these words also follow other reasons, where another host is jumped through
        r"(?:kex|ssh)_exchange_identification: [^\n]*|Connection (?:closed|reset) by \S+ port \d+",
        HostBusy,
        "{0} hung up before a login.",
        "see whether its sshd, or that of a host before it, takes no more logins at once (MaxStartups) or bans this "
        "machine: `ssh -v {0}`",
    ),
)


def host_error(
    host: str, said: str, *, is_starting: bool = True
) -> HostUnreachable | HostKeyUnknown | HostKeyChanged | LoginRefused:
    """Return the error for a host that cannot be used, given the output of ssh and of the shell there.

    Args:
        is_starting: whether python3 has not been started there yet, so that the shell's startup files may be to blame.
    """
    said = said.strip()
    for pattern, kind, words, advice in KNOWN:
        match = re.search(pattern, said)
        if match:
            told = words.format(host, match[0].strip(" ."))
            details = None if said.removeprefix("ssh: ").strip(" .") in told else said
            return kind(told, advice=advice.format(host, trust=trust_command(host)), details=details)
    last = said.splitlines()[-1] if said else "the login ended without a word"
    return HostUnreachable(
        f"{host} cannot be used: {last.rstrip('.')}.",
        advice=_startup_advice(host) if is_starting else f"`ssh {host} true`, which must work without a question",
        details=said or None,
    )


def not_started(host: str, seconds: float, said: str) -> HostUnreachable:
    """Return the error for a login that lasts, but has not started python3, given what the host has printed."""
    return HostUnreachable(
        f"The login to {host} has not started python3 within {seconds:.0f} s.",
        advice=_startup_advice(host),
        details=said.strip() or None,
    )


def _startup_advice(host: str) -> str:
    return (
        f"`ssh {host} python3 -V`, which must print a version without a question; startup files of the shell there "
        "(~/.bashrc) may neither read its input nor put another shell in its place"
    )


def trust_command(host: str) -> str:
    """Return the ``muster trust`` command for a host as ssh knows it, on the default port."""
    user, _, name = host.rpartition("@")
    return f"muster trust -p 22 {f'-l {user} ' if user else ''}{name}"


def together(errors: Mapping[str, MusterError]) -> MusterError:
    """Return one error for several hosts that cannot be used; the host's own error where there is only one."""
    first = next(iter(errors.values()))
    if len(errors) == 1:
        return first
    kind = type(first) if len({type(error) for error in errors.values()}) == 1 else HostUnreachable
    advice = {error.advice for error in errors.values() if error.advice}
    return kind(
        f"{len(errors)} hosts cannot be used: " + " ".join(error.message for error in errors.values()),
        advice="; ".join(sorted(advice)) or None,
    )
