"""A trainer in another process, over its Unix socket. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from insitu.kit.codec import to_json
from insitu.kit.rpc import RpcClient
from insitu.train import wire
from insitu.train.base import TrainerStatus
from insitu.types import PolicyVersion, Sample, StepReport, TrainError

_QUICK_S = 10.0
"""For what is answered at once; a step, a save and a publication may take their time."""


class TrainerClient:
    """Speaks to `insitu.train.server`; used from one event loop.

    Every method raises `TrainError` when the trainer cannot be reached, dies or fails, and
    `ValueError` for a request that it can never take.

    Example: `report = await TrainerClient(socket, token).step(samples, number=7)`.
    """

    def __init__(self, socket: Path, token: str) -> None:
        """Nothing is connected before the first request."""
        self._rpc = RpcClient(socket, token, error=TrainError, name="trainer")

    async def step(self, samples: Sequence[Sample], *, number: int | None = None) -> StepReport:
        """Take step `number`; if it was taken already, its report comes back (see `Trainer.step`)."""
        body = to_json(wire.StepRequest(number=number, samples=tuple(samples)))
        return await self._rpc.ask(wire.STEP, body, StepReport)

    async def publish(self) -> PolicyVersion:
        """Put the current weights into the run's weight store."""
        return await self._rpc.ask(wire.PUBLISH, b"", PolicyVersion)

    async def save(self) -> Path:
        """Write a checkpoint; return its folder."""
        return Path((await self._rpc.ask(wire.SAVE, b"", wire.Saved)).path)

    async def resume(self) -> int:
        """Go back to the newest whole checkpoint; return the version."""
        return (await self._rpc.ask(wire.RESUME, b"", wire.Resumed)).version

    async def status(self) -> TrainerStatus:
        """Where the trainer stands; answered also while a step runs."""
        return await self._rpc.ask(wire.STATUS, b"", TrainerStatus, timeout_s=_QUICK_S)

    async def healthy(self) -> bool:
        """Whether the trainer answers."""
        try:
            await self.status()
        except TrainError:
            return False
        return True

    async def close(self) -> None:
        """Drop the connections; the trainer goes on."""
        await self._rpc.close()
