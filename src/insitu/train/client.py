"""A trainer in another process, over its Unix socket. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import httpx
import pydantic

from insitu.kit.codec import from_json, to_json
from insitu.train import wire
from insitu.train.base import TrainerStatus
from insitu.types import PolicyVersion, Sample, StepReport, TrainError

T = TypeVar("T")
_QUICK_S = 10.0
"""For what is answered at once; a step, a save and a publication may take their time."""


class TrainerClient:
    """Speaks to `insitu.train.server`; used from one event loop.

    Every method raises `TrainError` when the trainer cannot be reached, dies or refuses.

    Example: `report = await TrainerClient(socket, token).step(samples, number=7)`.
    """

    def __init__(self, socket: Path, token: str) -> None:
        """Nothing is connected before the first request."""
        self._socket = socket
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)),
            base_url="http://trainer",
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=_QUICK_S),
        )

    async def step(self, samples: Sequence[Sample], *, number: int | None = None) -> StepReport:
        """Take step `number`; if it was taken already, its report comes back (see `Trainer.step`)."""
        body = to_json(wire.StepRequest(number=number, samples=tuple(samples)))
        return await self._ask(wire.STEP, StepReport, body)

    async def publish(self) -> PolicyVersion:
        """Put the current weights into the run's weight store."""
        return await self._ask(wire.PUBLISH, PolicyVersion)

    async def save(self) -> Path:
        """Write a checkpoint; return its folder."""
        return Path((await self._ask(wire.SAVE, wire.Saved)).path)

    async def resume(self) -> int:
        """Go back to the newest whole checkpoint; return the version."""
        return (await self._ask(wire.RESUME, wire.Resumed)).version

    async def status(self) -> TrainerStatus:
        """Where the trainer stands; answered also while a step runs."""
        return await self._ask(wire.STATUS, TrainerStatus, timeout_s=_QUICK_S)

    async def healthy(self) -> bool:
        """Whether the trainer answers."""
        try:
            await self.status()
        except TrainError:
            return False
        return True

    async def close(self) -> None:
        """Drop the connections; the trainer goes on."""
        await self._http.aclose()

    async def _ask(
        self, path: str, kind: type[T], body: bytes = b"", *, timeout_s: float | None = None
    ) -> T:
        try:
            answer = await self._http.post(path, content=body, timeout=timeout_s)
        except httpx.TransportError as e:
            raise TrainError(f"trainer at {self._socket}: {type(e).__name__}: {e}") from e
        try:
            if answer.status_code == httpx.codes.OK:
                return from_json(kind, answer.content)
            problem = from_json(wire.Problem, answer.content)
        except pydantic.ValidationError as e:
            raise TrainError(f"trainer at {self._socket} answered nonsense: {e}") from e
        raise TrainError(problem.message)
