import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from insitu.kit.rpc import RpcClient
from insitu.kit.rpc_server import RpcApp, serve_rpc
from insitu.types import EngineError, TrainError, UsageError


@asynccontextmanager
async def client(socket: Path, error: Exception) -> AsyncIterator[RpcClient]:
    async def fail(_: bytes) -> object:
        raise error

    serving = asyncio.create_task(serve_rpc(RpcApp({"/x": fail}, "token"), socket))
    while not socket.exists():
        await asyncio.sleep(0.01)
    asking = RpcClient(socket, "token", error=TrainError, name="trainer")
    try:
        yield asking
    finally:
        await asking.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (OSError(errno.ENOSPC, "No space", "a"), UsageError, "a: the disk is full. Free some"),
        (UsageError("no", remedy="do"), UsageError, "no. Do."),
        (EngineError("gone"), TrainError, "gone"),
        (KeyError("bug"), TrainError, "KeyError: 'bug'"),
        (ValueError("never"), ValueError, "never"),
    ],
)
async def test_an_error_of_the_service_is_one_of_the_same_kind_here(tmp_path, error, kind, line):
    async with client(tmp_path / "s", error) as asking:
        with pytest.raises(kind, match=line):
            await asking.ask("/x", b"", dict)
