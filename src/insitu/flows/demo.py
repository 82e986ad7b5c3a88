"""`insitu demo`: the whole loop on one machine, from the base policy to the report."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from insitu.config.load import load
from insitu.config.tree import Config
from insitu.evaluate.report import headline
from insitu.flows.build import run_build
from insitu.flows.evaluation import AFTER, BEFORE, GREEDY_BEFORE, evaluate_policy
from insitu.flows.progress import Progress
from insitu.flows.reporting import baselines_of, report, report_data, result_line
from insitu.flows.rl import check_training, train_policy
from insitu.flows.runs import (
    open_run,
    read_tasks,
    refuse_evaluation,
    same_history,
    training_tasks,
)
from insitu.flows.services import Services, open_services
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.types import PolicyVersion, Task, UsageError

RECIPES = Path("recipes/demo")


def prepare_demo(*, console: Console | None) -> None:
    """Build the demo's task sets, or complete them; nothing happens where they are whole."""
    for name in ("train", "heldout"):
        config = load(_recipe(f"tasks-{name}.toml"))
        if not (Path(config.build.out) / "report.json").is_file():
            run_build(config, console=console)


def run_demo(overrides: Sequence[str], *, progress: Progress) -> list[str]:
    """Evaluate, train, evaluate again, report; what an earlier demo left is gone on with.

    Returns:
        The last lines for a person: held-out pass@1 before and after, with intervals.
    """
    config = load(_recipe("rl.toml"), overrides)
    check_training(config)
    train = training_tasks(config)
    heldout = read_tasks(config.tasks.heldout, key="tasks.heldout", limit=config.eval.limit)
    with open_run(config, resume=True) as (folder, ledger):
        refuse_evaluation(folder, ledger)
        same_history(config, folder)
        if not _finished(ledger):
            asyncio.run(_measure_and_train(config, folder, ledger, train, heldout, progress))
        else:
            progress.say(f"{folder.path} is complete: reused; remove it to run the demo again")
        tries, seed = config.eval.baseline_tries, config.run.seed
        known = read_tasks(config.tasks.train, key="tasks.train")
        baselines = baselines_of(known, heldout, tries=tries, seed=seed)
        data = report_data(folder, ledger, seed=seed, baselines=baselines)
    page = report(data, folder, Console())
    tables = [f"baseline, {b.name}: {b.rate.value:.1%}" for b in baselines]
    return [
        f"report: {page}",
        *tables,
        result_line("before, greedy", data.greedy_before),
        result_line("before", data.before),
        result_line("after", data.after),
        headline(data),
    ]


def _recipe(name: str) -> Path:
    path = RECIPES / name
    if not path.is_file():
        raise UsageError(f"{path}: no such file", remedy="run the demo in a clone of insitu")
    return path


def _finished(ledger: Ledger) -> bool:
    return any(row.eval_id == AFTER and row.ended_at is not None for row in ledger.evals())


async def _measure_and_train(
    config: Config,
    folder: RunFolder,
    ledger: Ledger,
    train: Sequence[Task],
    heldout: Sequence[Task],
    progress: Progress,
) -> None:
    if ledger.sessions()[:-1]:
        progress.say(f"{folder.path} was begun before: going on where it stopped")
    async with open_services(config, folder, ledger, with_trainer=True) as services:
        base = services.store.get(0)
        await _evaluate(services, heldout, BEFORE, "before", base, progress)
        await _evaluate(services, heldout, GREEDY_BEFORE, "before, greedy", base, progress)
        version = await train_policy(services, train, progress)
        trained = services.store.get(version)
        await _evaluate(services, heldout, AFTER, "after", trained, progress)


async def _evaluate(
    services: Services,
    tasks: Sequence[Task],
    eval_id: str,
    label: str,
    policy: PolicyVersion,
    progress: Progress,
) -> None:
    greedy = eval_id == GREEDY_BEFORE
    sampling = services.sampling
    await evaluate_policy(
        services,
        tasks,
        eval_id=eval_id,
        label=label,
        policy=policy,
        sampling=replace(sampling, temperature=0.0) if greedy else sampling,
        attempts=1 if greedy else services.config.eval.attempts,
        progress=progress,
    )
