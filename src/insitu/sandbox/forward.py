"""The one way out of a sandbox: a listening socket inside, piped to a Unix socket outside.

The launcher makes the listening socket in the sandbox's network namespace and hands it over;
connections are accepted and copied here, so no relay runs inside and nothing else of the
host can be named from there.
"""

import asyncio
import contextlib
import socket

_CHUNK = 65_536


class ForwardServer:
    """Serves one forward until it is closed."""

    def __init__(self, server: asyncio.Server, tasks: set["asyncio.Task[None]"]) -> None:
        self._server = server
        self._tasks = tasks

    @classmethod
    async def start(cls, listener: socket.socket, target: str) -> "ForwardServer":
        """Accept from `listener` and connect each to the Unix socket `target`."""
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(_serve(reader, writer, target))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return cls(await asyncio.start_server(accept, sock=listener), tasks)

    async def close(self) -> None:
        """Stop accepting and cut every connection."""
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _serve(inside: asyncio.StreamReader, back: asyncio.StreamWriter, target: str) -> None:
    """One connection, until either side is done; a refused target just closes it."""
    with contextlib.suppress(ConnectionError, OSError):
        try:
            outside, out = await asyncio.open_unix_connection(target)
            try:
                await asyncio.gather(_pump(inside, out), _pump(outside, back))
            finally:
                out.close()
        finally:
            back.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
