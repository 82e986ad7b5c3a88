"""`insitu eval`: one policy on held-out tasks, or two compared, beside what needs no model."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from insitu.config.tree import Config
from insitu.evaluate.stats import Estimate
from insitu.evaluate.suite import EvalResult, compare_results
from insitu.flows.evaluation import evaluate_policy
from insitu.flows.progress import Progress
from insitu.flows.reporting import baselines_of
from insitu.flows.runs import EVALUATION, open_run, read_tasks, refuse_training
from insitu.flows.services import Services, adopt_model, open_services
from insitu.kit.digest import digest_bytes
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.types import PolicyVersion, Task


def run_eval(config: Config, *, progress: Progress) -> list[str]:
    """Evaluate, or finish an evaluation that was interrupted; lines for a person.

    Equal weights, tasks and settings are not evaluated twice in the same run folder.
    """
    settings, seed = config.eval, config.run.seed
    config.require("policy.model", "product.file")
    heldout = read_tasks(config.tasks.heldout, key="tasks.heldout", limit=settings.limit)
    with open_run(config, resume=True) as (folder, ledger):
        refuse_training(folder, ledger)
        results = asyncio.run(_evaluate_all(config, folder, ledger, heldout, progress))
    lines = [_line(result.label, result) for result in results]
    sampled = [r for r in results if not r.label.endswith("greedy")]
    if len(sampled) == 2:
        test = compare_results(sampled[0], sampled[1], seed=seed)
        lines.append(f"difference: {_points(test.difference)}, p {test.p_value:.2g} (paired)")
    if settings.baselines:
        train = read_tasks(config.tasks.train, key="tasks.train") if config.tasks.train else []
        lines += [
            f"baseline {b.name}: {_rate(b.rate)}"
            for b in baselines_of(train, heldout, tries=settings.baseline_tries, seed=seed)
        ]
    return lines


async def _evaluate_all(
    config: Config,
    folder: RunFolder,
    ledger: Ledger,
    tasks: Sequence[Task],
    progress: Progress,
) -> list[EvalResult]:
    models = [m for m in (config.policy.model, config.eval.compare) if m]
    async with open_services(config, folder, ledger, with_trainer=False) as services:
        results = []
        for number, model in enumerate(models):
            # Each its own number: an engine reuses keys and values of equal version numbers.
            policy = adopt_model(services.store, model, number=number)
            results.append(await _evaluate(services, tasks, policy, model, False, progress))
            if config.eval.greedy:
                results.append(await _evaluate(services, tasks, policy, model, True, progress))
        return results


async def _evaluate(
    services: Services,
    tasks: Sequence[Task],
    policy: PolicyVersion,
    model: str,
    greedy: bool,
    progress: Progress,
) -> EvalResult:
    settings = services.config.eval
    sampling = replace(services.sampling, temperature=0.0 if greedy else settings.temperature)
    attempts = 1 if greedy else settings.attempts
    what = (policy.digest, repr(sampling), str(attempts), *(task.digest for task in tasks))
    return await evaluate_policy(
        services,
        tasks,
        eval_id=f"{EVALUATION}{digest_bytes(*(part.encode() for part in what))[:16]}",
        label=f"{model}, greedy" if greedy else model,
        policy=policy,
        sampling=sampling,
        attempts=attempts,
        progress=progress,
    )


def _line(name: str, result: EvalResult) -> str:
    return (
        f"{name}: pass@1 {_rate(result.rate)} on {result.rate.tasks} tasks; per episode "
        f"{result.calls.value:.1f} calls, {result.tokens.value:.0f} sampled tokens, "
        f"{result.seconds.value:.1f} s"
    )


def _rate(rate: Estimate) -> str:
    return f"{rate.value:.1%} (95% interval {rate.low:.1%} to {rate.high:.1%})"


def _points(d: Estimate) -> str:
    return f"{100 * d.value:+.1f} points (95% interval {100 * d.low:+.1f} to {100 * d.high:+.1f})"
