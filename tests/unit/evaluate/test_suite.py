import asyncio

import pytest

from insitu.evaluate import suite
from insitu.kit.codec import from_json, to_json
from insitu.types import Episode, EpisodeEnd, Task
from tests.unit.evaluate.made import call, episode, task


async def test_every_attempt_runs_once_within_the_seats() -> None:
    running = most = 0
    seeds = []

    async def run(t: Task, attempt: int, seed: int) -> Episode:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seeds.append(seed)
        await asyncio.sleep(0.001)
        running -= 1
        return episode(t.task_id, attempt == 0, attempt=attempt)

    seen = []
    tasks = [task("a"), task("b"), task("c")]
    episodes = await suite.run_suite(
        tasks, run, attempts=2, concurrency=4, seed=9,
        progress=lambda done, total, e: seen.append((done, total)),
    )  # fmt: skip
    assert [(e.task_id, e.attempt) for e in episodes] == [
        ("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip
    assert most == 4
    assert seen == [(i, 6) for i in range(1, 7)]
    assert len(set(seeds)) == 6


async def test_an_error_ends_the_suite() -> None:
    async def run(t: Task, attempt: int, seed: int) -> Episode:
        if t.task_id == "a":
            raise OSError("disk full")
        await asyncio.sleep(30)
        return episode(t.task_id, True)

    with pytest.raises(OSError, match="disk full"):
        await suite.run_suite([task("a"), task("b")], run, attempts=1, concurrency=2, seed=0)


def test_a_result_says_everything_about_a_suite() -> None:
    episodes = [
        episode("a", True, calls=(call(0, 4), call(1, 6)), tested_first=1.0, repeats=3.0),
        episode("a", False, attempt=1, end=EpisodeEnd.TURN_LIMIT, calls=(call(0, 2),), tested_first=0.0, repeats=0.0),
        episode("b", False, end=EpisodeEnd.TIMED_OUT, calls=(call(0, 8),), wall_s=4.0),
        episode("b", False, attempt=1, end=EpisodeEnd.FAULT),
        episode("c", True, end=EpisodeEnd.FAULT),
    ]  # fmt: skip
    result = suite.summarise(
        episodes, suite="heldout", label="before", seed=0,
        behaviours={"tested before editing": "tested_first", "unknown": "nothing", "repeated": "repeats"},
    )  # fmt: skip
    assert result.per_task == {"a": 0.5, "b": 0.0}
    assert result.rate.value == 0.25
    assert (result.episodes, result.attempts, result.faults) == (3, 2, 2)
    assert result.unmeasured == ("c",)
    assert result.tokens.value == pytest.approx((6 + 8) / 2)
    assert result.calls.value == pytest.approx((1.5 + 1) / 2)
    assert result.seconds.value == pytest.approx(3.0)
    assert result.ends == {"finished": 1, "turn_limit": 1, "timed_out": 1}
    assert {k: v.value for k, v in result.behaviours.items()} == {
        "tested before editing": 0.5,
        "repeated": 0.5,
    }
    assert from_json(suite.EvalResult, to_json(result)) == result


def test_two_results_are_compared_on_the_tasks_they_share() -> None:
    def result(**rates: bool) -> suite.EvalResult:
        episodes = [episode(name, passed) for name, passed in rates.items()]
        return suite.summarise(episodes, suite="s", label="l", seed=0)

    test = suite.compare_results(result(a=False, b=False, c=True), result(b=True, a=True), seed=0)
    assert (test.difference.value, test.difference.tasks, test.better) == (1.0, 2, 2)
    with pytest.raises(ValueError, match="at least one task"):
        suite.compare_results(result(a=True), result(b=True), seed=0)


def test_only_faults_is_no_result() -> None:
    with pytest.raises(ValueError, match="none of 1 episodes counts"):
        suite.summarise([episode("a", True, end=EpisodeEnd.FAULT)], suite="s", label="l", seed=0)
