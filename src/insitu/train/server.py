"""The trainer as a process of its own: `python -m insitu.train.server --run DIR --socket PATH`.

HTTP over a Unix socket, JSON bodies, one bearer token. Steps run in a worker thread, one at a
time, so that the status is answered while one runs. The process starts from the run's newest
whole checkpoint, or from version 0 of its weight store, and ends when its parent does.
"""

import argparse
import asyncio
import hmac
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pydantic
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from insitu.config.load import load as load_config
from insitu.config.tree import Config
from insitu.kit.codec import from_json, to_json
from insitu.kit.log import get_log, setup_log
from insitu.ledger.run_folder import RunFolder
from insitu.train import wire
from insitu.train.base import TrainerStatus
from insitu.types import StepReport, TrainError, UsageError
from insitu.weights.store import WeightStore

if TYPE_CHECKING:
    # Read when they are needed: torch takes seconds, and bad arguments are told at once.
    from insitu.train.trainer import Trainer, TrainerSpec

T = TypeVar("T")
_log = get_log("train")
_PARENT_POLL_S = 0.5


class TrainerApp:
    """The trainer's routes."""

    def __init__(
        self, trainer: "Trainer", store: WeightStore, checkpoints: Path, token: str
    ) -> None:
        """An empty `token` refuses everybody."""
        self._trainer, self._store, self._checkpoints = trainer, store, checkpoints
        self._expected = f"Bearer {token}".encode() if token else b""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="step")
        self._training, self._steps, self._busy_s, self._tokens = False, 0, 0.0, 0
        routes: dict[str, Callable[[bytes], Awaitable[object]]] = {
            wire.STEP: self._step,
            wire.PUBLISH: self._publish,
            wire.SAVE: self._save,
            wire.RESUME: self._resume,
            wire.STATUS: self._status,
        }
        self.asgi = Starlette(
            routes=[Route(p, self._guarded(r), methods=["POST"]) for p, r in routes.items()]
        )

    def _guarded(
        self, route: Callable[[bytes], Awaitable[object]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if not self._expected or not hmac.compare_digest(given, self._expected):
                return _json(401, wire.Problem(kind="refused", message="wrong token"))
            try:
                return _json(200, await route(await request.body()))
            except pydantic.ValidationError as e:
                return _json(422, wire.Problem(kind="refused", message=str(e)))
            except (TrainError, UsageError) as e:
                return _json(503, wire.Problem(kind="failed", message=str(e)))
            except Exception as e:  # noqa: BLE001 -- the process's boundary: the client is told
                _log.exception("request to %s failed", request.url.path)
                message = f"{type(e).__name__}: {e}"
                return _json(503, wire.Problem(kind="failed", message=message))

        return answer

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

    async def _publish(self, _body: bytes) -> object:
        return await self._work(lambda: self._trainer.publish(self._store))

    async def _save(self, _body: bytes) -> object:
        path = await self._work(lambda: self._trainer.save(self._checkpoints))
        return wire.Saved(path=str(path))

    async def _resume(self, _body: bytes) -> object:
        return wire.Resumed(version=await self._work(self._go_back))

    def _go_back(self) -> int:
        return self._trainer.resume(self._checkpoints)

    async def _status(self, _body: bytes) -> object:
        return TrainerStatus(
            step=self._trainer.version,
            training=self._training,
            steps_taken=self._steps,
            busy_s=self._busy_s,
            tokens=self._tokens,
        )


def _json(status: int, value: object) -> Response:
    return Response(to_json(value), status_code=status, media_type="application/json")


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

    trainer = Trainer(trainer_spec(load_config(folder.config), base.path))
    version = trainer.resume(folder.checkpoints)
    if version not in store.numbers():
        trainer.publish(store)
    return trainer, store


def listen(path: Path) -> socket.socket:
    """A Unix socket at `path` that only this user may open; a stale one is replaced."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        server.bind(str(path))
    finally:
        os.umask(before)
    return server


async def serve(app: TrainerApp, path: Path, *, parent: int | None = None) -> None:
    """Serve at `path` until the process is told to end or `parent` (a pid) is gone."""
    config = uvicorn.Config(
        app.asgi, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=3600
    )
    watch = asyncio.create_task(_outlive(parent)) if parent is not None else None
    try:
        await uvicorn.Server(config).serve(sockets=[listen(path)])
    finally:
        if watch is not None:
            watch.cancel()
        path.unlink(missing_ok=True)


async def _outlive(parent: int) -> None:
    """End at once when `parent` is no longer this process's parent.

    In the middle of a step too: nothing is half-written, and a step without a parent is in vain.
    """
    while os.getppid() == parent:  # noqa: ASYNC110 -- no event announces a parent's death
        await asyncio.sleep(_PARENT_POLL_S)
    _log.warning("the parent process is gone; ending")
    os._exit(1)


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
        app = TrainerApp(trainer, store, folder.checkpoints, token)
        asyncio.run(serve(app, a.socket, parent=parent))
    except UsageError as e:
        sys.stderr.write(f"{e}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
