"""An ASGI application on a Unix socket or on loopback, as a context manager."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from insitu.types import GatewayError, UsageError

_LONGEST_PATH = 107
"""Bytes that the kernel allows for a Unix socket's path."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone: they belong to the run."""
        yield


@asynccontextmanager
async def serve_app(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on a bound socket until the block ends.

    Raises:
        GatewayError: the server did not start.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise GatewayError(f"the server did not start: {task.exception()}")
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task})
        listener.close()


def unix_listener(path: Path) -> socket.socket:
    """A listening socket file that only its owner can use; an old file there is replaced.

    Raises:
        UsageError: the path is too long for a socket or its folder cannot be written.
    """
    if len(str(path).encode()) > _LONGEST_PATH:
        raise UsageError(
            f"{path}: longer than the {_LONGEST_PATH} bytes a Unix socket's path may have",
            remedy="run from a folder with a shorter path",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise UsageError(f"{path}: {error.strerror}", remedy="choose another folder") from error
    return listener


def loopback_listener(port: int) -> socket.socket:
    """A socket on 127.0.0.1; port 0 takes a free one.

    Raises:
        UsageError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise UsageError(f"port {port}: {error.strerror}", remedy="choose another port") from error
    return listener
