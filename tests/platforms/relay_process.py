"""A relay as a process: carries connections from a free port of its own, which it prints, to HOST PORT."""

from __future__ import annotations

import asyncio
import signal
import sys

from muster.agent import linux


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(host: str, port: int, own: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", own)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    linux.signal_at_parent_death(signal.SIGKILL)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
