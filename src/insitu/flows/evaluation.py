"""Evaluate a policy on a suite of tasks, and note it in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from insitu.evaluate.suite import EvalResult, run_suite, summarise
from insitu.flows.progress import Progress
from insitu.flows.recording import Recorder
from insitu.flows.services import Services, unless_given_up
from insitu.ledger.ledger import Ledger
from insitu.ledger.recovery import OpenGroup, recover
from insitu.rollout.episode import Attempt
from insitu.rollout.patience import Patience
from insitu.types import Episode, EpisodeEnd, Group, PolicyVersion, Sampling, Task, UsageError

BEHAVIOURS: Mapping[str, str] = {
    "tests before editing": "tested_before_edit",
    "repeats a failed edit": "repeated_edits",
    "finishes once the test passes": "finished_after_pass",
}
"""What the report calls a behaviour → the signal that tells it."""

BEFORE, AFTER = "heldout-before", "heldout-after"
GREEDY_BEFORE, GREEDY_AFTER = "heldout-greedy-before", "heldout-greedy-after"
"""Names of the demo's evaluations in the ledger."""

_RESULT = TypeAdapter(EvalResult)


def read_result(ledger: Ledger, eval_id: str) -> EvalResult | None:
    """The result of an evaluation that has ended; None where there is none."""
    ended = [row for row in ledger.evals(eval_id) if row.ended_at is not None]
    return _RESULT.validate_json(ended[0].result) if ended else None


async def evaluate_policy(
    services: Services,
    tasks: Sequence[Task],
    *,
    eval_id: str,
    label: str,
    policy: PolicyVersion,
    sampling: Sampling,
    attempts: int,
    progress: Progress,
) -> EvalResult:
    """Have the engine serve `policy` and run the suite, or what an interrupted one left of it."""
    ledger = services.ledger
    if (known := read_result(ledger, eval_id)) is not None:
        progress.say(f"{label}: {known.rate.value:.1%}, reused from the ledger")
        return known
    await services.engine.load(policy)
    ledger.start_eval(eval_id, suite="heldout", version=policy.number, label=label)
    suite = _Suite(services, eval_id, sampling, attempts)
    progress.stage(label, len(tasks) * attempts)
    passed: list[bool] = []

    def show(done: int, _total: int, episode: Episode) -> None:
        passed.append(episode.signal("passed") >= 1)
        progress.advance(done, f"passed {sum(passed) / len(passed):.1%}")

    work = run_suite(
        tasks,
        suite.run,
        attempts=attempts,
        concurrency=services.config.eval.in_flight or services.config.rollout.in_flight,
        seed=services.config.run.seed,
        progress=show,
    )
    episodes = await unless_given_up(services, work)
    if all(e.end is EpisodeEnd.FAULT for e in episodes):
        raise UsageError(
            f"{label}: nothing but faults; the last: {episodes[-1].note}",
            remedy="mend its cause, and give the evaluation another run.name",
        )
    result = summarise(
        episodes,
        suite="heldout",
        label=label,
        seed=services.config.run.seed,
        behaviours=BEHAVIOURS,
    )
    ledger.finish_eval(eval_id, _RESULT.dump_json(result).decode())
    return result


class _Suite:
    """Runs the episodes of one evaluation; those that have ended already are not run again."""

    def __init__(self, services: Services, eval_id: str, sampling: Sampling, attempts: int) -> None:
        self._services, self._eval_id = services, eval_id
        self._sampling, self._attempts = sampling, attempts
        self._recorder = Recorder(services, size=attempts, eval_id=eval_id)
        self._patience = Patience()
        self._open: dict[str, OpenGroup] = {}
        self._ended: dict[str, dict[int, Episode]] = {}
        for group in recover(services.ledger, services.episodes).open:
            if group.row.eval_id == eval_id:
                self._open[group.row.group_id] = group
                self._ended[group.row.group_id] = {e.attempt: e for e in group.done}
        for row in services.ledger.groups("ready", eval_id=eval_id):
            group_of = services.episodes.read_group(row.group_id)
            self._ended[row.group_id] = {e.attempt: e for e in group_of.episodes}

    async def run(self, task: Task, index: int, seed: int) -> Episode:
        """One attempt at a task, through faults of the system."""
        group_id = f"{self._eval_id}.{task.task_id}"
        ended = self._ended.setdefault(group_id, {})
        if index in ended:
            return ended[index]
        left = self._open.get(group_id)
        tries = left.started.get(index, 0) if left else 0
        retries = self._services.config.rollout.retries
        for number in range(tries, tries + retries + 1):
            attempt = Attempt(
                episode_id=f"{group_id}-{index}" + (f"-r{number}" if number else ""),
                group_id=group_id,
                task=task,
                index=index,
                seed=seed,
                sampling=replace(self._sampling),
            )
            self._recorder.started(attempt)
            episode = await self._services.runner.run(attempt)
            self._recorder.ended(episode)
            if episode.end is not EpisodeEnd.FAULT:
                self._patience.kept()
                break
            self._patience.fault(episode.note)
        else:
            self._patience.lost()
        ended[index] = episode
        if len(ended) == self._attempts:
            self._close(group_id, task, ended)
        return episode

    def _close(self, group_id: str, task: Task, ended: Mapping[int, Episode]) -> None:
        counted = [ended[i] for i in sorted(ended) if ended[i].end is not EpisodeEnd.FAULT]
        if len(counted) < self._attempts:
            self._recorder.discarded(group_id, "faults")
            return
        self._services.episodes.write_group(
            Group(group_id=group_id, task_id=task.task_id, episodes=tuple(counted))
        )
        self._services.ledger.ready_group(group_id)
