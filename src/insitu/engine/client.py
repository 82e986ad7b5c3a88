"""An engine in another process, over its Unix socket.

A small HTTP/1.1 client on asyncio streams: a pool of kept connections, one request on each at a
time. It costs about a tenth of what a general HTTP client costs per request, and it closes the
connection when the caller is cancelled, which is how the server learns of it.
"""

import asyncio
import time
from pathlib import Path
from typing import TypeVar

import pydantic

from insitu.engine.base import EngineStatus
from insitu.engine.wire import GENERATE, HEALTH, LOAD, REFUSED, STATUS, Loaded, Problem
from insitu.kit.codec import from_json, to_json
from insitu.types import EngineError, PolicyVersion, TokenRequest, TokenResult

T = TypeVar("T")
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_LOST = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, EOFError)
_POLL_S = 0.1


class EngineClient:
    """Implements `Engine` for a server at a Unix socket; used from one event loop.

    Example: `engine = EngineClient(Path("run/engine.sock"), token)`.
    """

    def __init__(self, socket: Path, token: str) -> None:
        self._socket = str(socket)
        self._token = token
        self._idle: list[_Connection] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._closed = False

    async def generate(self, request: TokenRequest) -> TokenResult:
        """See `Engine.generate`."""
        return await self._ask(GENERATE, to_json(request), TokenResult)

    async def load(self, policy: PolicyVersion) -> float:
        """See `Engine.load`."""
        return (await self._ask(LOAD, to_json(policy), Loaded)).pause_s

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        return await self._ask(STATUS, b"", EngineStatus)

    async def close(self) -> None:
        """Drop all connections; the server cancels what runs on them and goes on."""
        self._closed = True
        for writer in list(self._open):
            self._drop(writer)
        self._idle.clear()

    async def healthy(self) -> bool:
        """Whether the server answers now."""
        try:
            await self._ask(HEALTH, b"", EngineStatus)
        except EngineError:
            return False
        return True

    async def wait_ready(self, timeout_s: float) -> EngineStatus:
        """Wait until the server answers.

        Raises:
            EngineError: it did not within `timeout_s` seconds; the last cause is named.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                return await self._ask(HEALTH, b"", EngineStatus)
            except EngineError as e:
                if time.monotonic() >= end:
                    raise EngineError(f"not ready after {timeout_s:.0f} s: {e}") from e
            await asyncio.sleep(_POLL_S)

    async def _ask(self, path: str, body: bytes, kind: type[T]) -> T:
        if self._closed:
            raise EngineError("the client is closed")
        try:
            status, answer = await self._exchange(path, body)
        except _LOST as e:
            raise EngineError(f"engine at {self._socket}: {type(e).__name__}: {e}") from e
        try:
            if status == 200:
                return from_json(kind, answer)
            problem = from_json(Problem, answer)
        except pydantic.ValidationError as e:
            raise EngineError(f"engine at {self._socket} answered nonsense: {e}") from e
        if status == REFUSED:
            raise ValueError(problem.message)
        raise EngineError(problem.message)

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        """One request on a kept connection that is still open, or on a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if reader.at_eof() or writer.is_closing():
                self._drop(writer)
                continue
            return await self._talk(reader, writer, path, body)
        reader, writer = await asyncio.open_unix_connection(self._socket)
        self._open.add(writer)
        return await self._talk(reader, writer, path, body)

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
    ) -> tuple[int, bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: engine\r\nauthorization: Bearer {self._token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        kept = False
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            status, length, keep = _read_head(await reader.readuntil(b"\r\n\r\n"))
            answer = await reader.readexactly(length)
            kept = keep and not self._closed
        finally:
            # Also when the caller is cancelled: an answer still to come makes it useless.
            if kept:
                self._idle.append((reader, writer))
            else:
                self._drop(writer)
        return status, answer

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.close()


def _read_head(head: bytes) -> tuple[int, int, bool]:
    """Status, length of the body, and whether the connection is kept.

    Raises:
        EOFError: the head has no length or is not HTTP.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    try:
        return (
            int(first.split(" ", 2)[1]),
            int(fields["content-length"]),
            fields.get("connection", "").lower() != "close",
        )
    except (IndexError, ValueError, KeyError) as e:
        raise EOFError(f"not an answer: {first!r}") from e
