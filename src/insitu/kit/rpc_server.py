"""The other end of `insitu.kit.rpc`: a service's routes on its Unix socket.

A plain ASGI callable under uvicorn: a handful of routes needs no framework. A client that
disconnects cancels what it asked for. The process ends when its parent does.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pydantic
import uvicorn

from insitu.kit.codec import to_json
from insitu.kit.disk import mendable
from insitu.kit.log import get_log
from insitu.kit.rpc import FAILED, MENDABLE, REFUSED, Problem
from insitu.types import BoundaryError

_log = get_log("kit")
_PARENT_POLL_S = 0.5
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

Handler = Callable[[bytes], Awaitable[object]]
"""Takes the request's body, gives a value for `to_json`."""


class RpcApp:
    """ASGI application around a service's routes."""

    def __init__(self, routes: Mapping[str, Handler], token: str) -> None:
        """An empty `token` refuses everybody."""
        self._routes = routes
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if not self._allowed(scope):
            await _answer(send, 401, Problem(message="wrong token"))
            return
        body = await _body(receive)
        work = asyncio.create_task(self._route(scope["path"], body))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await _answer(send, *work.result())
        finally:
            work.cancel()
            gone.cancel()

    def _allowed(self, scope: _Message) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return bool(self._expected) and hmac.compare_digest(given, self._expected)

    async def _route(self, path: str, body: bytes) -> tuple[int, object]:
        handler = self._routes.get(path)
        if handler is None:
            return 404, Problem(message=f"no route {path}")
        try:
            return 200, await handler(body)
        except BoundaryError as e:
            return FAILED, Problem(message=str(e))
        except (ValueError, pydantic.ValidationError) as e:
            return REFUSED, Problem(message=str(e))
        except Exception as e:  # noqa: BLE001 -- the process's boundary: the client is told
            if (problem := mendable(e)) is not None:
                return MENDABLE, Problem(message=str(problem))
            _log.exception("request to %s failed", path)
            return FAILED, Problem(message=f"{type(e).__name__}: {e}")


async def serve_rpc(app: RpcApp, path: Path, *, parent: int | None = None) -> None:
    """Serve at `path` until the process is told to end or `parent` (a pid) is gone.

    A lost parent ends the process at once, in the middle of a request too: nothing that a
    service writes is ever half-written, and work without a parent is in vain.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=3600,  # the client keeps its connections
    )
    watch = asyncio.create_task(_outlive(parent)) if parent is not None else None
    try:
        await uvicorn.Server(config).serve(sockets=[listen(path)])
    finally:
        if watch is not None:
            watch.cancel()
        path.unlink(missing_ok=True)


def listen(path: Path) -> socket.socket:
    """A Unix socket at `path` that only this user may open; a stale one is replaced."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        server.bind(str(path))
    finally:
        os.umask(before)
    return server


async def _outlive(parent: int) -> None:
    """End the process when `parent` is no longer its parent."""
    while os.getppid() == parent:  # noqa: ASYNC110 -- no event announces a parent's death
        await asyncio.sleep(_PARENT_POLL_S)
    _log.warning("the parent process is gone; ending")
    os._exit(1)


async def _body(receive: _Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: _Send, status: int, value: object) -> None:
    body = to_json(value)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
