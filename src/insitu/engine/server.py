"""The engine as a process of its own: `python -m insitu.engine.server --policy JSON --socket PATH`.

Its routes are served by `insitu.kit.rpc_server`; the process ends when its parent does.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from insitu.engine.base import Engine
from insitu.engine.wire import GENERATE, LOAD, STATUS, Loaded
from insitu.kit.codec import from_json
from insitu.kit.disk import mendable
from insitu.kit.log import setup_log
from insitu.kit.rpc_server import Handler, RpcApp, serve_rpc
from insitu.types import PolicyVersion, TokenRequest, UsageError


def engine_routes(engine: Engine) -> dict[str, Handler]:
    """What a client may ask of `engine`, by path."""

    async def generate(body: bytes) -> object:
        return await engine.generate(from_json(TokenRequest, body))

    async def load(body: bytes) -> object:
        return Loaded(pause_s=await engine.load(from_json(PolicyVersion, body)))

    async def status(_body: bytes) -> object:
        return await engine.status()

    return {GENERATE: generate, LOAD: load, STATUS: status}


async def serve(engine: Engine, path: Path, token: str, *, parent: int | None = None) -> None:
    """Serve `engine` at `path` until the process is told to end or `parent` (a pid) is gone."""
    try:
        await serve_rpc(RpcApp(engine_routes(engine), token), path, parent=parent)
    finally:
        await engine.close()


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
    except Exception as e:
        if (problem := mendable(e)) is None:
            raise
        sys.stderr.write(" ".join(str(problem).split()) + "\n")
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
