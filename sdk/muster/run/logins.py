"""Detection of workers whose sshd the session cannot reach, for example because of a firewall or a separate network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

from muster.job import Member

CONNECT_SECONDS = 3.0  # for one connection; packets that a firewall drops are never answered
AT_ONCE = 100  # connections


async def with_reachable_sshd(members: Mapping[str, Member]) -> dict[str, Member]:
    """Return the members; one whose sshd cannot be reached from here has the reason in place of its ssh port."""
    gate = asyncio.Semaphore(AT_ONCE)
    troubles: dict[str, str] = {}

    async def look(member: Member) -> None:
        async with gate:
            if member.ssh_port is not None and not troubles:  # one is enough: a launcher logs in to all or none
                trouble = await _trouble(member.host, member.ssh_port)
                if trouble:
                    where = f"port {member.ssh_port} of {member.host}"
                    troubles[member.name] = f"{where} cannot be reached from the session: {trouble}"

    await asyncio.gather(*(look(member) for member in members.values()))
    return {
        name: replace(member, ssh_port=None, no_ssh=troubles[name]) if name in troubles else member
        for name, member in members.items()
    }


async def _trouble(host: str, port: int) -> str:
    """Return why there is no connection to this address, in words; empty where there is one."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_SECONDS)
    except (asyncio.TimeoutError, TimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
