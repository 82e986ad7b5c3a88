"""The engine's own process: start, token, disconnect, death of either side."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from insitu.engine.client import EngineClient
from insitu.engine.scripted import ScriptedEngine
from insitu.engine.server import serve
from insitu.kit.codec import to_json
from insitu.types import EngineError
from tests.unit.engine.made import CONTEXT, as_policy, request

PROMPT = tuple(range(3, 43))


def command(model: Path, socket: Path, *more: str) -> list[str]:
    policy = to_json(as_policy(model, 5)).decode()
    begin = [sys.executable, "-m", "insitu.engine.server", "--policy", policy]
    return [*begin, "--socket", str(socket), "--context", str(CONTEXT), "--slots", "2", *more]


@contextlib.asynccontextmanager
async def scripted(socket: Path) -> AsyncIterator[None]:
    engine = ScriptedEngine(lambda s, p: "abc", lambda t: [5] * len(t), lambda i: "", (1,))
    server = asyncio.create_task(serve(engine, socket, "secret"))
    await EngineClient(socket, "secret").wait_ready(10)
    try:
        yield
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


async def test_the_token_is_asked_for(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    async with scripted(socket):
        assert socket.stat().st_mode & 0o077 == 0
        for token in ("wrong", "", "secret "):
            with pytest.raises(EngineError, match="wrong token"):
                await EngineClient(socket, token).generate(request(PROMPT))
        client = EngineClient(socket, "secret")
        assert (await client.generate(request(PROMPT))).token_ids == (5, 5, 5, 1)
        assert await client.healthy()


async def test_nonsense_is_refused_and_the_connection_kept(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    async with scripted(socket):
        client = EngineClient(socket, "secret")
        for path, body, what in (
            ("/generate", b"{", "JSON"),
            ("/generate", b'{"prompt_ids": [1], "colour": 3}', "colour"),
            ("/load", b"[]", "."),
            ("/nosuch", b"", "no route"),
        ):
            status, answer = await client._rpc._exchange(path, body)
            assert status in (404, 422)
            assert what.encode() in answer
        assert len(client._rpc._idle) == 1


async def test_no_server_is_an_engine_error(tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "s", "secret")
    with pytest.raises(EngineError, match="engine at"):
        await client.generate(request(PROMPT))
    with pytest.raises(EngineError, match="not ready after 0 s"):
        await client.wait_ready(0.05)
    assert not await client.healthy()


async def test_the_process_serves_and_its_death_is_an_engine_error(
    model: Path, tmp_path: Path
) -> None:
    socket, env = tmp_path / "s", os.environ | {"INSITU_TOKEN": "secret"}
    process = await asyncio.create_subprocess_exec(*command(model, socket), env=env)
    client = EngineClient(socket, "secret")
    try:
        status = await client.wait_ready(60)
        assert (status.version, status.context) == (5, CONTEXT)
        long = [
            asyncio.create_task(client.generate(request(PROMPT, session=s, max_tokens=200)))
            for s in "ab"
        ]
        while (await client.status()).running < 2:
            await asyncio.sleep(0.005)
        process.kill()
        for task in long:
            with contextlib.suppress(EngineError):
                assert (await task).finish == "length"  # it may just have been done
        with pytest.raises(EngineError, match="engine at"):
            await client.generate(request(PROMPT))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await client.close()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:])
print(child.pid, flush=True)
time.sleep(600)
"""


async def test_the_process_ends_with_its_parent(model: Path, tmp_path: Path) -> None:
    socket, env = tmp_path / "s", os.environ | {"INSITU_TOKEN": "secret"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command(model, socket)], env=env, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    client = EngineClient(socket, "secret")
    try:
        await client.wait_ready(60)
        parent.kill()
        parent.wait()
        end = time.monotonic() + 10
        while await client.healthy() and time.monotonic() < end:
            await asyncio.sleep(0.1)
        assert not await client.healthy()
    finally:
        await client.close()
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_wrong_starts_end_with_one_line_and_code_2(model: Path, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((model / "config.json").read_text())
    options = ["--socket", str(socket), "--context", str(CONTEXT)]
    cases = [
        (command(model, socket), "", "INSITU_TOKEN is empty"),
        (
            [*command(model, socket)[:3], *options, "--model", str(broken)],
            "t",
            "neither model.safetensors",
        ),
    ]
    for argv, token, what in cases:
        done = subprocess.run(
            argv, env=os.environ | {"INSITU_TOKEN": token}, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert what in done.stderr
        assert len(done.stderr.splitlines()) == 1
