"""What every engine keeps, whatever is behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from insitu.engine.base import Engine
from insitu.engine.client import EngineClient
from insitu.engine.embedded.engine import EmbeddedEngine
from insitu.engine.engines import ENGINES, engine_class
from insitu.engine.scripted import ScriptedEngine
from insitu.engine.server import serve
from insitu.types import EngineError, PolicyVersion, UsageError
from tests.unit.engine.made import CONTEXT, as_policy, make_model, request

PROMPT = tuple(range(3, 43))
STOP = 1
Opened = Callable[[], AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("contract"))


def embedded(model: Path) -> EmbeddedEngine:
    return EmbeddedEngine(model, policy=as_policy(model, 3), slots=4, context=CONTEXT)


@asynccontextmanager
async def open_embedded(model: Path, _: Path) -> AsyncIterator[Engine]:
    engine = embedded(model)
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def open_scripted(model: Path, _: Path) -> AsyncIterator[Engine]:
    def plan(session: str, prompt: str) -> str:
        return (session + prompt)[:100]

    engine = ScriptedEngine(
        plan,
        encode=lambda text: [2 + ord(c) % 100 for c in text],
        decode=lambda ids: "".join(chr(40 + i) for i in ids),
        stop_ids=(STOP,),
        context=CONTEXT,
    )
    await engine.load(as_policy(model, 3))
    yield engine


@asynccontextmanager
async def open_process(model: Path, folder: Path) -> AsyncIterator[Engine]:
    """The client over a real socket; the server shares this process to start fast."""
    socket = folder / "engine.sock"
    server = asyncio.create_task(serve(embedded(model), socket, "secret"))
    client = EngineClient(socket, "secret")
    await client.wait_ready(10)
    try:
        yield client
    finally:
        await client.close()
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


OPENERS = {"embedded": open_embedded, "scripted": open_scripted, "process": open_process}


@pytest.fixture(params=sorted(OPENERS))
def opened(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Opened:
    return lambda: OPENERS[request.param](model, tmp_path)


def test_every_engine_is_under_contract() -> None:
    assert set(ENGINES) == set(OPENERS)
    for name in ENGINES:
        assert engine_class(name).__name__
    with pytest.raises(UsageError, match="unknown engine nosuch"):
        engine_class("nosuch")


async def test_tokens_logprobs_and_versions_go_together(opened: Opened) -> None:
    async with opened() as engine:
        result = await engine.generate(request(PROMPT, max_tokens=20, stop_ids=(STOP,)))
        n = len(result.token_ids)
        assert n == len(result.logprobs) == len(result.versions) >= 1
        assert all(logprob <= 0 for logprob in result.logprobs)
        assert set(result.versions) == {3}
        if result.finish == "stop":
            assert result.token_ids.index(STOP) == n - 1
        else:
            assert (result.finish, n) == ("length", 20)


async def test_limits_hold(opened: Opened) -> None:
    async with opened() as engine:
        one = await engine.generate(request(PROMPT, max_tokens=1))
        assert (len(one.token_ids), one.finish) == (1, "length")
        nearly = tuple([5] * (CONTEXT - 3))
        full = await engine.generate(request(nearly, max_tokens=50))
        assert (len(full.token_ids), full.finish) == (3, "length")


async def test_a_prompt_that_does_not_fit_is_refused_with_figures(opened: Opened) -> None:
    async with opened() as engine:
        for prompt in ((), (5,) * CONTEXT):
            with pytest.raises(ValueError, match=f"{len(prompt)} tokens.*{CONTEXT}"):
                await engine.generate(request(prompt))
        assert (await engine.generate(request(PROMPT, max_tokens=2))).finish == "length"


async def test_many_at_once(opened: Opened) -> None:
    async with opened() as engine:
        results = await asyncio.gather(
            *(
                engine.generate(request(PROMPT[i:], session=str(i), max_tokens=1 + i))
                for i in range(12)
            )
        )
        assert [len(r.token_ids) for r in results] == list(range(1, 13))
        status = await engine.status()
        assert (status.running, status.waiting) == (0, 0)
        assert status.sampled_tokens == sum(range(1, 13))
        assert 0 < status.prompt_tokens <= sum(len(PROMPT[i:]) for i in range(12))
        assert status.context == CONTEXT
        assert status.busy_s > 0


async def test_load_changes_the_version_of_later_tokens(opened: Opened, model: Path) -> None:
    async with opened() as engine:
        assert (await engine.status()).version == 3
        assert await engine.load(as_policy(model, 4)) >= 0
        result = await engine.generate(request(PROMPT, max_tokens=3))
        assert set(result.versions) == {4}
        status = await engine.status()
        assert (status.version, status.digest) == (4, as_policy(model).digest)


async def test_unproven_weights_are_refused(opened: Opened, model: Path) -> None:
    async with opened() as engine:
        if isinstance(engine, ScriptedEngine):
            pytest.skip("has no weights to prove")
        bad = PolicyVersion(number=5, digest="ab" * 32, path=str(model), step=5)
        with pytest.raises(EngineError, match="digest"):
            await engine.load(bad)
        assert (await engine.status()).version == 3


async def test_cancelling_the_caller_cancels_the_work(opened: Opened) -> None:
    async with opened() as engine:
        tasks = [
            asyncio.create_task(engine.generate(request(PROMPT, session=str(i), max_tokens=200)))
            for i in range(8)
        ]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(5):
            while True:
                status = await engine.status()
                if status.running == status.waiting == 0:
                    break
                await asyncio.sleep(0.01)
        assert len((await engine.generate(request(PROMPT, max_tokens=2))).token_ids) == 2


async def test_a_closed_engine_says_so(opened: Opened) -> None:
    async with opened() as engine:
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(request(PROMPT))
