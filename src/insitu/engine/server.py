"""The engine as a process of its own: `python -m insitu.engine.server --policy JSON --socket PATH`.

HTTP over a Unix socket, JSON bodies, one bearer token. A plain ASGI callable under uvicorn: the
four routes need no framework. The process ends when its parent does.
"""

import argparse
import asyncio
import hmac
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pydantic
import uvicorn

from insitu.engine.base import Engine
from insitu.engine.wire import FAILED, GENERATE, HEALTH, LOAD, REFUSED, STATUS, Loaded, Problem
from insitu.kit.codec import from_json, to_json
from insitu.kit.log import get_log, setup_log
from insitu.types import EngineError, PolicyVersion, TokenRequest, UsageError

_log = get_log("engine")
_PARENT_POLL_S = 0.5
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class EngineApp:
    """ASGI application around an engine."""

    def __init__(self, engine: Engine, token: str) -> None:
        """An empty `token` refuses everybody."""
        self._engine = engine
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request; a client that disconnects cancels what it asked for."""
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
                status, value = work.result()
                await _answer(send, status, value)
        finally:
            work.cancel()
            gone.cancel()

    def _allowed(self, scope: _Message) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return bool(self._expected) and hmac.compare_digest(given, self._expected)

    async def _route(self, path: str, body: bytes) -> tuple[int, object]:
        try:
            if path == GENERATE:
                return 200, await self._engine.generate(from_json(TokenRequest, body))
            if path == LOAD:
                pause = await self._engine.load(from_json(PolicyVersion, body))
                return 200, Loaded(pause_s=pause)
            if path in (STATUS, HEALTH):
                return 200, await self._engine.status()
        except EngineError as e:
            return FAILED, Problem(message=str(e))
        except (ValueError, pydantic.ValidationError) as e:
            return REFUSED, Problem(message=str(e))
        except Exception as e:  # noqa: BLE001 -- the process's boundary: the client is told
            _log.exception("request to %s failed", path)
            return FAILED, Problem(message=f"{type(e).__name__}: {e}")
        return 404, Problem(message=f"no route {path}")


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


async def serve(engine: Engine, path: Path, token: str, *, parent: int | None = None) -> None:
    """Serve `engine` at `path` until the process is told to end or `parent` (a pid) is gone."""
    config = uvicorn.Config(
        EngineApp(engine, token),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=3600,  # the client keeps its connections
    )
    server = uvicorn.Server(config)
    watch = asyncio.create_task(_outlive(server, parent)) if parent is not None else None
    try:
        await server.serve(sockets=[listen(path)])
    finally:
        if watch is not None:
            watch.cancel()
        await engine.close()
        path.unlink(missing_ok=True)


async def _outlive(server: uvicorn.Server, parent: int) -> None:
    """Stop the server once `parent` is no longer this process's parent."""
    while os.getppid() == parent:  # noqa: ASYNC110 -- no event announces a parent's death
        await asyncio.sleep(_PARENT_POLL_S)
    _log.warning("the parent process is gone; ending")
    server.force_exit = True
    server.should_exit = True


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m insitu.engine.server", description=__doc__)
    p.add_argument("--model", type=Path, help="model folder; default: the policy's")
    p.add_argument("--policy", help="the PolicyVersion to begin with: JSON, or a file of it")
    p.add_argument("--socket", type=Path, required=True)
    p.add_argument("--token-env", default="INSITU_TOKEN", help="variable that holds the token")
    p.add_argument("--slots", type=int, default=64)
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--chunk", type=int, default=256)
    p.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto")
    p.add_argument("--device", default="auto")
    p.add_argument("--reuse-across-versions", choices=["keep", "recompute"], default="keep")
    p.add_argument("--deterministic", action="store_true")
    p.add_argument("--log", type=Path, help="file for the log")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Entry point; 2 after an error that the user can fix."""
    parent = os.getppid()
    a = _arguments(argv)
    setup_log(file=a.log)
    token = os.environ.pop(a.token_env, "")
    try:
        if not token:
            raise UsageError(f"{a.token_env} is empty", remedy="set it to the engine's token")
        asyncio.run(_run(a, token, parent))
    except UsageError as e:
        sys.stderr.write(f"{e}\n")
        return 2
    return 0


async def _run(a: argparse.Namespace, token: str, parent: int) -> None:
    from insitu.engine.embedded.engine import EmbeddedEngine

    policy = _policy(a.policy) if a.policy else None
    if a.model is None and policy is None:
        raise UsageError("neither --model nor --policy", remedy="give one of them")
    engine = EmbeddedEngine(
        a.model or Path(policy.path if policy else ""),
        policy=policy,
        slots=a.slots,
        context=a.context,
        dtype=a.dtype,
        threads=a.threads,
        chunk=a.chunk,
        deterministic=a.deterministic,
        reuse_across_versions=a.reuse_across_versions,
        device=a.device,
    )
    await serve(engine, a.socket, token, parent=parent)


def _policy(text: str) -> PolicyVersion:
    try:
        raw = text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        return from_json(PolicyVersion, raw)
    except (OSError, ValueError) as e:
        raise UsageError(f"--policy: {e}", remedy="give a PolicyVersion as JSON") from e


if __name__ == "__main__":
    sys.exit(main())
