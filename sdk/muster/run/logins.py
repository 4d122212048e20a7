"""Detection of workers whose sshd the launcher cannot reach, for example because of a firewall."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from muster.agent import wire
from muster.errors import PlatformError
from muster.job import SESSION, Member
from muster.run.streams import Streams

CONNECT_SECONDS = 3.0  # for one connection; packets that a firewall drops are never answered
AT_ONCE = 16  # connections; an agent makes no more than 32

# Connects to a host's port, and returns why there is no connection, in words; empty where there is one.
Connect = Callable[[str, int], Awaitable[str]]


async def with_reachable_sshd(members: Mapping[str, Member], launcher_at: str, streams: Streams) -> dict[str, Member]:
    """Return the members; one whose sshd the launcher cannot reach has the reason in place of its ssh port.

    Args:
        launcher_at: ``SESSION``, or the worker that the launcher runs on.
        streams: streams to the workers.
    """
    connect = _from_session if launcher_at == SESSION else _from_worker(launcher_at, streams)
    origin = "the session" if launcher_at == SESSION else launcher_at
    gate = asyncio.Semaphore(AT_ONCE)
    troubles: dict[str, str] = {}

    async def look(member: Member) -> None:
        async with gate:
            if member.ssh_port is not None and not troubles:  # one is enough: a launcher logs in to all or none
                trouble = await connect(member.host, member.ssh_port)
                if trouble:
                    where = f"port {member.ssh_port} of {member.host}"
                    troubles[member.name] = f"{where} cannot be reached from {origin}: {trouble}"

    await asyncio.gather(*(look(member) for member in members.values()))
    return {
        name: replace(member, ssh_port=None, no_ssh=troubles[name]) if name in troubles else member
        for name, member in members.items()
    }


async def _from_session(host: str, port: int) -> str:
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


def _from_worker(worker: str, streams: Streams) -> Connect:
    async def connect(host: str, port: int) -> str:
        try:
            stream = await streams.open(worker, wire.Dial(0, port, host))
        except PlatformError:  # it is lost or does not answer, which is told as such
            return ""
        stream.close()
        return stream.failure.text if stream.failure else ""

    return connect
