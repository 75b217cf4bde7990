"""A slow line between a client and a device: so many bytes a second, each so much later."""

from __future__ import annotations

import asyncio
import contextlib
import socket

PIECES_PER_S = 20  # so finely a second's bytes are divided
MAX_PIECE = 1 << 16
MAX_WAITING = 64  # pieces on their way; behind them the sender waits

_Waiting = asyncio.Queue[tuple[float, bytes]]  # when each piece arrives; the empty one is the end


async def _read(source: socket.socket, waiting: _Waiting, bytes_per_s: float, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    size = max(1, min(MAX_PIECE, int(bytes_per_s / PIECES_PER_S)))
    free = loop.time()  # when the line has passed all that came before
    piece = b"-"
    while piece:
        try:
            piece = await loop.sock_recv(source, size)
        except OSError:
            piece = b""
        free = max(free, loop.time()) + len(piece) / bytes_per_s
        await waiting.put((free + delay_s, piece))
        await asyncio.sleep(free - loop.time())


async def _pass(source: socket.socket, sink: socket.socket, bytes_per_s: float, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    waiting: _Waiting = asyncio.Queue(MAX_WAITING)
    reader = asyncio.create_task(_read(source, waiting, bytes_per_s, delay_s))
    try:
        with contextlib.suppress(OSError):
            while True:
                due, piece = await waiting.get()
                await asyncio.sleep(due - loop.time())
                if not piece:
                    return
                await loop.sock_sendall(sink, piece)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def pass_slowly(one: socket.socket, other: socket.socket, bytes_per_s: float, delay_s: float) -> None:
    """Pass bytes between two sockets, both ways, until one of them ends; then both are closed."""
    ways = [asyncio.create_task(_pass(*ends, bytes_per_s, delay_s)) for ends in ((one, other), (other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        one.close()
        other.close()
