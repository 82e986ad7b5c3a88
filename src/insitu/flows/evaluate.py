"""`insitu eval`: one policy on held-out tasks, beside the baselines without a model."""

import asyncio
from dataclasses import replace

from insitu.config.tree import Config
from insitu.evaluate.suite import EvalResult
from insitu.flows.evaluation import evaluate_policy
from insitu.flows.progress import Progress
from insitu.flows.reporting import baselines_of, result_line
from insitu.flows.runs import open_run, read_tasks
from insitu.flows.services import open_services


def run_eval(config: Config, *, progress: Progress) -> list[str]:
    """Evaluate, or finish an evaluation that was interrupted; lines for a person."""
    settings, seed = config.eval, config.run.seed
    heldout = read_tasks(config.tasks.heldout, key="tasks.heldout", limit=settings.limit)
    with open_run(config, resume=True) as (folder, ledger):

        async def main() -> EvalResult:
            async with open_services(config, folder, ledger, with_trainer=False) as services:
                temperature = 0.0 if settings.greedy else settings.temperature
                return await evaluate_policy(
                    services,
                    heldout,
                    eval_id=f"heldout-{'greedy' if settings.greedy else 'sampled'}",
                    label="greedy" if settings.greedy else "sampled",
                    policy=services.store.get(0),
                    sampling=replace(services.sampling, temperature=temperature),
                    attempts=1 if settings.greedy else settings.attempts,
                    progress=progress,
                )

        result = asyncio.run(main())
    lines = [result_line("policy", result)]
    if settings.baselines:
        train = read_tasks(config.tasks.train, key="tasks.train") if config.tasks.train else []
        for baseline in baselines_of(train, heldout, tries=settings.baseline_tries, seed=seed):
            rate = baseline.rate
            lines.append(
                f"baseline {baseline.name}: {rate.value:.1%} "
                f"(95% interval {rate.low:.1%} to {rate.high:.1%})"
            )
    return lines
