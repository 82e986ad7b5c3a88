"""Running a suite of tasks with one policy, and what its episodes say together."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from insitu.evaluate.stats import (
    Estimate,
    PairedTest,
    compare,
    mean_estimate,
    pass_at_1,
    task_rates,
)
from insitu.types import Episode, EpisodeEnd, Task

RunEpisode = Callable[[Task, int, int], Awaitable[Episode]]
"""Runs one attempt: the task, the attempt's number, the episode's seed. Faults are its business
to retry; what it gives back with the end `fault` is counted as lost."""

Progress = Callable[[int, int, Episode], None]
"""Episodes done, episodes in all, the one that has just ended."""

_SEED_STRIDE = 1_000_003  # a prime, so that attempts of neighbouring tasks share no seed


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """What a suite of tasks says about a policy.

    Example: `EvalResult(suite="heldout", label="after", rate=Estimate(value=0.42, …), …)`.
    """

    suite: str
    label: str
    """Which policy and how sampled, e.g. `before`, `after`, `before, greedy`."""
    attempts: int
    """Per task; of the task with the most."""
    episodes: int
    """Episodes that count: all but faults."""
    rate: Estimate
    """pass@1, its interval over tasks."""
    tokens: Estimate
    """Sampled tokens per episode, mean per task, its interval over tasks."""
    calls: Estimate
    seconds: Estimate
    """Wall-clock seconds of an episode."""
    reward: Estimate
    ends: dict[str, int]
    """How many episodes ended in each way, most frequent first."""
    behaviours: dict[str, Estimate]
    """Share of episodes, by signal; only over the tasks whose episodes have the signal."""
    per_task: dict[str, float]
    """Pass rate of each task, by task id."""
    faults: int = 0
    """Episodes that ended in a fault; they count neither for nor against the policy."""
    unmeasured: tuple[str, ...] = field(default=())
    """Tasks all of whose episodes were faults."""


async def run_suite(
    tasks: Sequence[Task],
    run_episode: RunEpisode,
    *,
    attempts: int,
    concurrency: int,
    seed: int,
    progress: Progress | None = None,
) -> list[Episode]:
    """Run `attempts` episodes of every task, at most `concurrency` at a time.

    All first attempts are started before any second one, so that an evaluation that is cut short
    has touched every task. An error of `run_episode` cancels the rest and is raised.

    Returns:
        The episodes, by attempt and then in the order of the tasks.
    """
    jobs = [(task, attempt) for attempt in range(attempts) for task in tasks]
    seats = asyncio.Semaphore(concurrency)
    done = 0

    async def one(index: int, task: Task, attempt: int) -> Episode:
        nonlocal done
        async with seats:
            episode = await run_episode(task, attempt, seed + _SEED_STRIDE * index)
        done += 1
        if progress is not None:
            progress(done, len(jobs), episode)
        return episode

    running = [asyncio.create_task(one(i, *job)) for i, job in enumerate(jobs)]
    try:
        return await asyncio.gather(*running)
    finally:
        # After an error: the others end as well, and the error stays the one it was.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def summarise(
    episodes: Sequence[Episode],
    *,
    suite: str,
    label: str,
    seed: int,
    behaviours: Mapping[str, str] | None = None,
    passed: str = "passed",
) -> EvalResult:
    """Turn a suite's episodes into its result.

    Args:
        episodes: any number of attempts per task, faults included.
        suite: name of the suite.
        label: which policy and how sampled.
        seed: of the resampling.
        behaviours: what a behaviour is called in the result -> the signal that tells it: a share,
            a yes (1) or no (0), or a count, of which any counts as yes. Episodes without the
            signal do not count for it.
        passed: the signal that is at least 1 where the tests passed.

    Raises:
        ValueError: no episode is left once faults are taken out.
    """
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task_id, []).append(episode)
    kept = {task: [e for e in es if e.end is not EpisodeEnd.FAULT] for task, es in by_task.items()}
    counted = {task: es for task, es in sorted(kept.items()) if es}
    if not counted:
        raise ValueError(f"{suite}: none of {len(episodes)} episodes counts")
    rates = task_rates([[e.signal(passed) >= 1.0 for e in es] for es in counted.values()])

    def per_episode(number: Callable[[Episode], float]) -> Estimate:
        means = [sum(map(number, es)) / len(es) for es in counted.values()]
        return mean_estimate(means, seed=seed)

    every = [e for es in counted.values() for e in es]
    return EvalResult(
        suite=suite,
        label=label,
        attempts=max(map(len, counted.values())),
        episodes=len(every),
        rate=pass_at_1(rates, seed=seed),
        tokens=per_episode(sampled_tokens),
        calls=per_episode(lambda e: float(len(e.calls))),
        seconds=per_episode(lambda e: e.wall_s),
        reward=per_episode(lambda e: e.reward.value),
        ends=dict(Counter(e.end.value for e in every).most_common()),
        behaviours=_behaviours(counted, behaviours or {}, seed),
        per_task=dict(zip(counted, map(float, rates), strict=True)),
        faults=len(episodes) - len(every),
        unmeasured=tuple(sorted(set(by_task) - set(counted))),
    )


def compare_results(before: EvalResult, after: EvalResult, *, seed: int) -> PairedTest:
    """Compare two policies on the tasks that both results have.

    Raises:
        ValueError: they share no task.
    """
    shared = sorted(before.per_task.keys() & after.per_task.keys())
    return compare(
        [before.per_task[task] for task in shared],
        [after.per_task[task] for task in shared],
        seed=seed,
    )


def sampled_tokens(episode: Episode) -> float:
    """Tokens that the policy sampled in all calls of an episode."""
    return float(sum(len(call.result.token_ids) for call in episode.calls))


def _behaviours(
    by_task: Mapping[str, Sequence[Episode]], names: Mapping[str, str], seed: int
) -> dict[str, Estimate]:
    found = {}
    for behaviour, signal in names.items():
        values = [
            [min(s.value, 1.0) for e in es for s in e.signals if s.name == signal]
            for es in by_task.values()
        ]
        means = [sum(v) / len(v) for v in values if v]
        if means:
            found[behaviour] = mean_estimate(means, seed=seed)
    return found
