"""The trainer as a process of its own: `python -m insitu.train.server --run DIR --socket PATH`.

Spoken to through `insitu.train.client`. Steps run in a worker thread, one at a
time, so that the status is answered while one runs. The process starts from the run's newest
whole checkpoint, or from version 0 of its weight store, and ends when its parent does.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from insitu.config.load import load
from insitu.config.tree import Config
from insitu.kit.codec import from_json
from insitu.kit.disk import mendable
from insitu.kit.log import setup_log
from insitu.kit.rpc_server import Handler, RpcApp, serve_rpc
from insitu.ledger.run_folder import RunFolder
from insitu.train import wire
from insitu.train.base import TrainerStatus
from insitu.types import PolicyVersion, StepReport, UsageError
from insitu.weights.store import WeightStore

if TYPE_CHECKING:
    # Read when they are needed: torch takes seconds, and bad arguments are told at once.
    from insitu.train.trainer import Trainer, TrainerSpec

T = TypeVar("T")


class TrainerService:
    """The trainer's routes."""

    def __init__(self, trainer: "Trainer", store: WeightStore, checkpoints: Path) -> None:
        """`checkpoints` is the folder of the run's checkpoints."""
        self._trainer, self._store, self._checkpoints = trainer, store, checkpoints
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="step")
        self._training, self._steps, self._busy_s, self._tokens = False, 0, 0.0, 0

    def routes(self) -> dict[str, Handler]:
        """By path, for `RpcApp`."""
        return {
            wire.STEP: self._step,
            wire.PUBLISH: self._publish,
            wire.SAVE: self._save,
            wire.RESUME: self._resume,
            wire.STATUS: self._status,
        }

    async def _work(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, job)

    async def _step(self, body: bytes) -> StepReport:
        return await self._work(lambda: self._take(body))

    def _take(self, body: bytes) -> StepReport:
        request = from_json(wire.StepRequest, body)
        before, began = self._trainer.version, time.monotonic()
        self._training = True
        try:
            report = self._trainer.step(request.samples, number=request.number)
        finally:
            self._training = False
            self._busy_s += time.monotonic() - began
        if self._trainer.version > before:
            self._steps += 1
            self._tokens += int(report.metrics["tokens"])
        return report

    async def _publish(self, _body: bytes) -> PolicyVersion:
        return await self._work(lambda: self._trainer.publish(self._store))

    async def _save(self, _body: bytes) -> wire.Saved:
        path = await self._work(lambda: self._trainer.save(self._checkpoints))
        return wire.Saved(path=str(path))

    async def _resume(self, _body: bytes) -> wire.Resumed:
        return wire.Resumed(version=await self._work(self._go_back))

    def _go_back(self) -> int:
        return self._trainer.resume(self._checkpoints)

    async def _status(self, _body: bytes) -> TrainerStatus:
        return TrainerStatus(
            step=self._trainer.version,
            training=self._training,
            steps_taken=self._steps,
            busy_s=self._busy_s,
            tokens=self._tokens,
        )


def trainer_spec(config: Config, base: str) -> "TrainerSpec":
    """What the recipe says of the RL step, for the base policy in the folder `base`."""
    from insitu.train.optimiser import AdamSpec
    from insitu.train.trainer import TrainerSpec

    c = config.train
    options = {
        "dppo_tv": {"threshold": c.tv_threshold, "tau": c.kl},
        "double_sided_is": {"low": c.ratio_low, "high": c.ratio_high},
    }
    return TrainerSpec(
        model=base,
        lr=c.lr,
        warmup_steps=c.warmup_steps,
        adam=AdamSpec(beta1=c.beta1, beta2=c.beta2, weight_decay=c.weight_decay, clip=c.clip),
        loss=c.loss,
        loss_options=options[c.loss],
        temperature=config.gateway.temperature,
        micro_tokens=c.max_tokens_per_pack,
        threads=c.threads,
        dtype=c.dtype,
        keep_checkpoints=config.rl.keep_checkpoints,
    )


def open_trainer(folder: RunFolder) -> tuple["Trainer", WeightStore]:
    """A run's trainer where its newest whole checkpoint left it, and the run's weight store.

    Raises:
        UsageError: the run, its base policy or its recipe cannot be used.
    """
    store = WeightStore(folder.weights)
    base = store.verify(0)
    from insitu.train.trainer import Trainer

    trainer = Trainer(trainer_spec(load(folder.config), base.path))
    version = trainer.resume(folder.checkpoints)
    if version not in store.numbers():
        trainer.publish(store)
    return trainer, store


def main(argv: list[str] | None = None) -> int:
    """Entry point; 2 after an error that the user can fix."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m insitu.train.server", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--token-env", default="INSITU_TOKEN", help="variable with the token")
    parser.add_argument("--log", type=Path, help="file for the log")
    a = parser.parse_args(argv)
    setup_log(file=a.log)
    token = os.environ.pop(a.token_env, "")
    try:
        if not token:
            raise UsageError(f"{a.token_env} is empty", remedy="set it to the trainer's token")
        folder = RunFolder.open(a.run)
        trainer, store = open_trainer(folder)
        service = TrainerService(trainer, store, folder.checkpoints)
        asyncio.run(serve_rpc(RpcApp(service.routes(), token), a.socket, parent=parent))
    except Exception as e:
        if (problem := mendable(e)) is None:
            raise
        sys.stderr.write(" ".join(str(problem).split()) + "\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
