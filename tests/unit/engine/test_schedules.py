"""Random schedules of arrivals, cancellations and new weights."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insitu.engine.embedded.engine import EmbeddedEngine
from insitu.types import TokenRequest, TokenResult
from tests.unit.engine.made import CONTEXT, VOCAB, as_policy, request


@dataclass(frozen=True)
class Arrive:
    session: int
    cut: int
    """Where the prompt leaves the common text."""
    extra: int
    tokens: int
    temperature: float
    cancel: bool

    def request(self) -> TokenRequest:
        text = [(7 * i + i * i) % VOCAB for i in range(self.cut)]
        tail = [(self.session * 31 + 5 * i) % VOCAB for i in range(self.extra)]
        return request(
            text + tail,
            session=str(self.session),
            temperature=self.temperature,
            max_tokens=self.tokens,
            seed=self.cut,
            top_p=0.9 if self.cut % 2 else 1.0,
        )


@dataclass(frozen=True)
class Load:
    pass


@dataclass(frozen=True)
class Rest:
    turns: int


arrivals = st.builds(
    Arrive,
    session=st.integers(0, 4),
    cut=st.sampled_from([0, 1, 30, 64, 70, 130]),
    extra=st.integers(1, 40),
    tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    cancel=st.sampled_from([False, False, False, True]),
)
schedules = st.lists(
    arrivals | arrivals | st.builds(Load) | st.builds(Rest, turns=st.integers(1, 4)),
    min_size=1,
    max_size=14,
)


async def play(
    engine: EmbeddedEngine, schedule: list[Arrive | Load | Rest], models: list[Path]
) -> list[tuple[Arrive, TokenResult]]:
    """Run a schedule; version n has the weights of model n % 2."""
    tasks: list[tuple[Arrive, asyncio.Task[TokenResult]]] = []
    version = (await engine.status()).version
    for event in schedule:
        if isinstance(event, Arrive):
            tasks.append((event, asyncio.create_task(engine.generate(event.request()))))
            if event.cancel:
                await asyncio.sleep(0.001)
                tasks[-1][1].cancel()
        elif isinstance(event, Rest):
            await asyncio.sleep(0.001 * event.turns)
        else:
            version += 1
            await engine.load(as_policy(models[version % 2], version))
    done = await asyncio.gather(*(t for _, t in tasks), return_exceptions=True)
    results = []
    for (event, _), result in zip(tasks, done, strict=True):
        if isinstance(result, asyncio.CancelledError):
            assert event.cancel
            continue
        assert isinstance(result, TokenResult), result
        assert result.finish == "length"
        assert len(result.token_ids) == len(result.logprobs) == len(result.versions) == event.tokens
        assert list(result.versions) == sorted(result.versions)
        results.append((event, result))
    async with asyncio.timeout(10):  # a cancelled request ends before the next step
        while (status := await engine.status()).running or status.waiting:
            await asyncio.sleep(0.001)
    assert status.version == version
    return results


@pytest.fixture(scope="module")
def alone(model: Path, other: Path) -> dict[tuple[Arrive, int], TokenResult]:
    """Results of requests computed by an engine that does nothing else; filled on demand."""
    return {}


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=schedules)
def test_any_schedule_deterministic(
    model: Path, other: Path, alone: dict[tuple[Arrive, int], TokenResult], schedule: list[Arrive]
) -> None:
    """Nothing is lost, and what one version sampled alone is bitwise what it is in company."""

    async def run() -> None:
        models = [model, other]
        engine = EmbeddedEngine(
            model, policy=as_policy(model), slots=3, context=CONTEXT, deterministic=True
        )
        try:
            results = await play(engine, schedule, models)
        finally:
            await engine.close()
        for event, result in results:
            if len(set(result.versions)) != 1:
                continue
            which = result.versions[0] % 2
            if (event, which) not in alone:
                lonely = EmbeddedEngine(models[which], slots=1, context=CONTEXT, deterministic=True)
                alone[event, which] = await lonely.generate(event.request())
                await lonely.close()
            expected = alone[event, which]
            assert result.token_ids == expected.token_ids
            assert result.logprobs == expected.logprobs

    asyncio.run(run())


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=schedules)
def test_any_schedule_batched(model: Path, other: Path, schedule: list[Arrive]) -> None:
    async def run() -> None:
        engine = EmbeddedEngine(model, policy=as_policy(model), slots=3, context=CONTEXT, chunk=24)
        try:
            await play(engine, schedule, [model, other])
        finally:
            await engine.close()

    asyncio.run(run())
