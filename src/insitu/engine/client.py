"""An engine in another process, over its Unix socket."""

import asyncio
import time
from pathlib import Path

from insitu.engine.base import EngineStatus
from insitu.engine.wire import GENERATE, LOAD, STATUS, Loaded
from insitu.kit.codec import to_json
from insitu.kit.rpc import RpcClient
from insitu.types import EngineError, PolicyVersion, TokenRequest, TokenResult

_POLL_S = 0.1


class EngineClient:
    """Implements `Engine` for a server at a Unix socket; used from one event loop.

    Example: `engine = EngineClient(Path("run/engine.sock"), token)`.
    """

    def __init__(self, socket: Path, token: str) -> None:
        """Nothing is connected before the first request."""
        self._rpc = RpcClient(socket, token, error=EngineError, name="engine")

    async def generate(self, request: TokenRequest) -> TokenResult:
        """See `Engine.generate`."""
        return await self._rpc.ask(GENERATE, to_json(request), TokenResult)

    async def load(self, policy: PolicyVersion) -> float:
        """See `Engine.load`."""
        return (await self._rpc.ask(LOAD, to_json(policy), Loaded)).pause_s

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        return await self._rpc.ask(STATUS, b"", EngineStatus)

    async def healthy(self) -> bool:
        """Whether the server answers."""
        try:
            await self.status()
        except EngineError:
            return False
        return True

    async def close(self) -> None:
        """Drop all connections; the server cancels what runs on them and goes on."""
        await self._rpc.close()

    async def wait_ready(self, timeout_s: float) -> EngineStatus:
        """Wait until the server answers.

        Raises:
            EngineError: it did not within `timeout_s` seconds; the last cause is named.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                return await self.status()
            except EngineError as e:
                if time.monotonic() >= end:
                    raise EngineError(f"not ready after {timeout_s:.0f} s: {e}") from e
            await asyncio.sleep(_POLL_S)
