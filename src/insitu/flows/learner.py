"""One train step from the controller's side: plan, train, publish, serve, and note it down.

A batch is written before the trainer sees it, and a step is done only when its weights are
served. So whatever dies, the same batches are taken again from the last checkpoint, in the same
order, and give the same losses; no group is trained twice into one history, and none is lost.
"""

import asyncio
import time
from collections.abc import Sequence

from insitu.flows.progress import Progress
from insitu.flows.services import Services
from insitu.kit.log import get_log
from insitu.rollout.samples import batch_samples
from insitu.types import EngineError, Group, PolicyVersion, StepReport, TrainError

_log = get_log("flows")
_REFUSALS = 3


class Learner:
    """Takes steps, through deaths of the trainer and of the engine."""

    def __init__(self, services: Services) -> None:
        if services.trainer is None:
            raise ValueError("these services have no trainer")
        self._services = services
        self._trainer = services.trainer
        self.version = max((s.number for s in services.ledger.steps("done")), default=0)

    async def step(self, batch: Sequence[Group]) -> StepReport:
        """Train on the batch and serve the result."""
        number = self.version + 1
        self._services.ledger.plan_step(number, [g.group_id for g in batch])
        try:
            return await self._take(number, batch)
        except TrainError as error:
            _log.warning("step %d: %s", number, error)
            reports = await self.catch_up()
            return reports[-1]

    async def catch_up(self, progress: Progress | None = None) -> list[StepReport]:
        """Take the steps that were planned, or done after the trainer's last checkpoint.

        Raises:
            TrainError: the trainer lives and refuses the same again and again.
        """
        services, refusals = self._services, 0
        while True:
            lives = services.processes["trainer"].pid
            try:
                await services.processes["trainer"].ready()
                step = (await self._trainer.status()).step
                if again := services.ledger.rewind(step):
                    _log.warning("the trainer resumes at step %d; %d are taken again", step, again)
                self.version = step
                planned = services.ledger.steps("planned")
                if planned and progress is not None:
                    progress.say(f"resuming after step {step}: {len(planned)} steps to take again")
                return [
                    await self._take(
                        row.number, [services.episodes.read_group(g) for g in row.group_ids]
                    )
                    for row in planned
                ]
            except TrainError as error:
                _log.warning("while catching up: %s", error)
                # The same process that refuses will not change its mind; a new one may.
                refusals = refusals + 1 if services.processes["trainer"].pid == lives else 0
                if refusals >= _REFUSALS:
                    raise
                await asyncio.sleep(0.5)

    async def save(self) -> None:
        """Checkpoint the trainer, if it is alive; a missed checkpoint costs time only."""
        try:
            await self._trainer.save()
        except TrainError as error:
            _log.warning("no checkpoint after step %d: %s", self.version, error)

    async def _take(self, number: int, batch: Sequence[Group]) -> StepReport:
        ledger, started = self._services.ledger, time.time()
        samples = batch_samples(batch, version=number - 1)
        report = await self._trainer.step(samples, number=number)
        policy = await self._trainer.publish()
        ledger.add_version(policy)
        await self._serve(policy)
        ledger.finish_step(report, started_at=started)
        self.version = number
        self._services.store.prune(keep=self._services.config.rl.keep_checkpoints)
        if number % self._services.config.rl.checkpoint_every == 0:
            await self.save()
        return report

    async def _serve(self, policy: PolicyVersion) -> None:
        """Have the engine serve `policy`; one that died comes back with the newest version."""
        engine, process = self._services.engine, self._services.processes["engine"]
        while True:
            try:
                if (await engine.status()).version < policy.number:
                    await engine.load(policy)
                return
            except EngineError as error:
                _log.warning("version %d: %s", policy.number, error)
                await process.ready()
