"""Asynchronous reinforcement learning: `insitu rl`.

The loop is `_loop`; it reads as the algorithm. Rollout goes on in the dispatcher's tasks while a
step is awaited. What must survive a crash is written before it is acted on: an episode's start,
its tokens, a step's batch.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain

from insitu.config.tree import Config
from insitu.evaluate.report import write_report
from insitu.flows.learner import Learner
from insitu.flows.progress import Progress
from insitu.flows.recording import Recorder
from insitu.flows.reporting import report_data
from insitu.flows.runs import (
    expect_run,
    open_run,
    refuse_evaluation,
    same_history,
    training_tasks,
)
from insitu.flows.services import Services, open_services, unless_given_up
from insitu.ledger.metrics import write_metrics
from insitu.ledger.recovery import OpenGroup, recover
from insitu.ledger.rows import GroupRow
from insitu.ledger.run_folder import RunFolder
from insitu.ledger.summary import training_time
from insitu.rollout.admission import Admission
from insitu.rollout.batches import form_batches
from insitu.rollout.dispatcher import Dispatcher, GroupPlan
from insitu.rollout.plans import plan_groups
from insitu.types import ConfigError, Group, StepReport, Task


async def train_policy(services: Services, tasks: Sequence[Task], progress: Progress) -> int:
    """Train until the recipe's number of steps or its wall time; a run goes on where it was.

    Returns:
        The version reached.
    """
    learner = Learner(services)
    await learner.catch_up(progress)
    before = recover(services.ledger, services.episodes)
    if learner.version >= services.config.rl.steps:
        progress.say(f"all {learner.version} steps are done already")
        return learner.version
    plans = _plans(services, tasks, [g for g in before.open if not g.row.eval_id])
    dispatcher = _dispatcher(services, plans, learner.version, waiting=len(before.ready))
    try:
        loop = _loop(services, learner, dispatcher, before.ready, progress)
        await unless_given_up(services, loop)
    finally:
        # What was in flight has been cancelled: it ends here, and is not trained.
        services.ledger.interrupt(cause="the run ended")
    await learner.save()
    return learner.version


async def _loop(
    services: Services,
    learner: Learner,
    dispatcher: Dispatcher,
    ready_before: Sequence[GroupRow],
    progress: Progress,
) -> None:
    settings = services.config.rl
    spent = sum(end - start for start, end in training_time(services.ledger))
    deadline = time.monotonic() + (settings.max_wall_s or float("inf")) - spent
    progress.stage("training", settings.steps)
    async with aclosing(dispatcher.groups()) as fresh:
        source = form_batches(
            _stored(services, ready_before, fresh),
            size=settings.groups_per_step,
            refuse=lambda group: _refusal(services, dispatcher.admission, group),
            discard=dispatcher.discard,
        )
        async with aclosing(source) as ready:
            async for batch in ready:
                report = await learner.step(batch)
                dispatcher.served(report.version)
                write_metrics(services.ledger, services.folder.metrics)
                progress.advance(report.step, _figures(batch, report))
                if report.step >= settings.steps or time.monotonic() > deadline:
                    return


async def _stored(
    services: Services, ready_before: Sequence[GroupRow], fresh: AsyncIterator[Group]
) -> AsyncIterator[Group]:
    """Groups that may be trained: those left from before, then new ones once they are stored."""
    for row in ready_before:
        yield services.episodes.read_group(row.group_id)
    async for group in fresh:
        services.episodes.write_group(group)
        services.ledger.ready_group(group.group_id)
        yield group


def _refusal(services: Services, admission: Admission, group: Group) -> str:
    if not any(s.sampled for e in group.episodes for s in e.segments):
        return "no tokens"
    if admission.is_stale(group.oldest_version):
        return "stale"
    if services.config.rl.skip_groups_without_signal and not group.has_signal:
        return "no signal"
    return ""


def _plans(
    services: Services, tasks: Sequence[Task], left: Sequence[OpenGroup]
) -> Iterator[GroupPlan]:
    """Groups that were in flight when the run stopped, then those not yet begun."""
    by_id = {t.task_id: t for t in tasks}
    seed, begun = services.config.run.seed, len(services.ledger.groups())
    first = {p.group_id: p for p in _first(plan_groups(tasks, seed=seed), begun)}
    resumed = (
        replace(first[g.row.group_id], task=by_id[g.row.task_id], done=g.done, started=g.started)
        for g in left
    )
    return chain(resumed, plan_groups(tasks, seed=seed, start=begun))


def _first(plans: Iterator[GroupPlan], count: int) -> Iterator[GroupPlan]:
    for _, plan in zip(range(count), plans, strict=False):
        yield plan


def _dispatcher(
    services: Services, plans: Iterator[GroupPlan], version: int, *, waiting: int
) -> Dispatcher:
    settings, recorder = services.config.rl, Recorder(services, size=services.config.rl.group_size)
    admission = Admission(
        groups_per_step=settings.groups_per_step,
        staleness=settings.staleness,
        version=version,
        admitted=version * settings.groups_per_step + waiting,
        limit=settings.steps * settings.groups_per_step,
    )
    return Dispatcher(
        plans=plans,
        run_episode=services.runner.run,
        admission=admission,
        sampling=services.sampling,
        group_size=settings.group_size,
        in_flight=services.config.rollout.in_flight,
        retries=services.config.rollout.retries,
        on_start=recorder.started,
        on_end=recorder.ended,
        on_discard=recorder.discarded,
    )


def _figures(batch: Sequence[Group], report: StepReport) -> str:
    episodes = [e for g in batch for e in g.episodes]
    reward = sum(e.reward.value for e in episodes) / len(episodes)
    shown: Mapping[str, float] = {
        "reward": reward,
        "passed": sum(e.signal("passed") for e in episodes) / len(episodes),
        "k3": report.metrics.get("k3", 0.0),
        "lag": report.metrics.get("lag_mean", 0.0),
    }
    return "  ".join(f"{name} {value:.3g}" for name, value in shown.items())


def check_training(config: Config) -> None:
    """Refuse a recipe that names no model or product, or samples as no loss can learn from.

    Raises:
        ConfigError: names the key.
    """
    config.require("policy.model", "product.file")
    if config.gateway.temperature <= 0:
        raise ConfigError(
            "gateway.temperature: 0 is greedy, from which nothing can be learnt",
            remedy="train with a temperature above 0; eval.greedy evaluates with 0",
        )
    if config.gateway.top_p < 1 or config.gateway.top_k > 0:
        raise ConfigError(
            "gateway.top_p and gateway.top_k cut the distribution, which the loss does not know",
            remedy="train with top_p = 1 and top_k = 0; evaluation may use both",
        )


def run_rl(config: Config, *, resume: bool, progress: Progress) -> RunFolder:
    """Train a policy by RL inside a product, as the recipe says; the run's folder."""
    check_training(config)
    tasks = training_tasks(config)
    if resume:
        expect_run(config)
    with open_run(config, resume=resume) as (folder, ledger):
        refuse_evaluation(folder, ledger)
        same_history(config, folder)

        async def main() -> None:
            async with open_services(config, folder, ledger, with_trainer=True) as services:
                await train_policy(services, tasks, progress)

        asyncio.run(main())
        data = report_data(folder, ledger, seed=config.run.seed, baselines=())
    write_report(data, folder.report)
    return folder
