"""One episode: a product at work on a task in a sandbox, its calls recorded, its diff judged."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from insitu.sandbox.base import Sandbox, SandboxBackend
from insitu.types import (
    BoundaryError,
    Call,
    Change,
    EngineError,
    Episode,
    EpisodeEnd,
    ExecResult,
    Reward,
    Sampling,
    SandboxSpec,
    Segment,
    Signal,
    Task,
    Verdict,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Which episode to run.

    Example: `Attempt(episode_id="g7-0", group_id="g7", task=task, index=0, seed=41)`.
    """

    episode_id: str
    group_id: str
    task: Task
    index: int
    """0-based among the attempts at this task."""
    seed: int
    sampling: Sampling


class RecordingLike(Protocol):
    """What a gateway gives back for a closed session."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls in order of arrival."""
        ...

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The calls stitched into train-ready sequences."""
        ...

    @property
    def stop(self) -> str:
        """`turn_limit`, `context_limit`, `engine_fault` or empty."""
        ...


class SessionGate(Protocol):
    """The part of the gateway that an episode needs."""

    def open(self, episode_id: str, *, sampling: Sampling, seed: int, max_calls: int) -> str:
        """Open a session and return its key."""
        ...

    def close(self, key: str) -> RecordingLike:
        """End the session; its key is refused from now on."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRunner:
    """Runs episodes; everything they need is wired in once by a flow."""

    backend: SandboxBackend
    gate: SessionGate
    spec: Callable[[Task], SandboxSpec]
    """The computer that the product's agent gets for a task."""
    launch: Callable[[Sandbox, Task, str], Awaitable[ExecResult]]
    """Runs the product's agent to its end with the session's key."""
    judge: Callable[[Task, Sequence[Change]], Awaitable[Verdict]]
    score: Callable[[EpisodeEnd, Sequence[Call], Sequence[Change], Verdict], tuple[Signal, ...]]
    reward: Callable[[Sequence[Signal]], Reward]
    max_calls: int

    async def run(self, attempt: Attempt) -> Episode:
        """Run one attempt to its end; a fault of the system ends it as `FAULT` and is told why."""
        started, clock = time.time(), _Stopwatch()
        key = self.gate.open(
            attempt.episode_id,
            sampling=attempt.sampling,
            seed=attempt.seed,
            max_calls=self.max_calls,
        )
        fault = ""
        ran: ExecResult | None = None
        changes: tuple[Change, ...] = ()
        verdict: Verdict | None = None
        try:
            ran, changes = await self._work(attempt.task, key, clock)
        except BoundaryError as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            recording = self.gate.close(key)
        if not fault and recording.stop == "engine_fault":
            fault = f"{EngineError.__name__}: the engine did not answer the product's call"
        if not fault:
            try:
                verdict = await self.judge(attempt.task, changes)
            except BoundaryError as error:
                fault = f"{type(error).__name__}: {error}"
            clock.lap("verify")
        end = _how_it_ended(ran, recording.stop, fault)
        signals: tuple[Signal, ...] = ()
        reward = Reward(value=0.0, formula="fault")
        if verdict is not None:
            signals = self.score(end, recording.calls, changes, verdict)
            reward = self.reward(signals)
        return Episode(
            episode_id=attempt.episode_id,
            group_id=attempt.group_id,
            task_id=attempt.task.task_id,
            attempt=attempt.index,
            end=end,
            calls=recording.calls,
            segments=recording.segments,
            changes=tuple(changes),
            signals=signals,
            reward=reward,
            started_at=started,
            wall_s=time.time() - started,
            seed=attempt.seed,
            note=fault or _last_words(ran),
            timings=clock.laps | {"engine": sum(c.latency_s for c in recording.calls)},
        )

    async def _work(
        self, task: Task, key: str, clock: "_Stopwatch"
    ) -> tuple[ExecResult, tuple[Change, ...]]:
        sandbox = await self.backend.create(self.spec(task))
        clock.lap("sandbox")
        try:
            ran = await self.launch(sandbox, task, key)
            clock.lap("product")
            return ran, await sandbox.changes()
        finally:
            await sandbox.destroy()
            clock.lap("sandbox")


class _Stopwatch:
    """Seconds by stage; laps of the same name add up."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now


def _how_it_ended(ran: ExecResult | None, stop: str, fault: str) -> EpisodeEnd:
    if fault or ran is None:
        return EpisodeEnd.FAULT
    if ran.timed_out:
        return EpisodeEnd.TIMED_OUT
    if stop in (EpisodeEnd.TURN_LIMIT, EpisodeEnd.CONTEXT_LIMIT):
        return EpisodeEnd(stop)
    return EpisodeEnd.FINISHED if ran.exit_code == 0 else EpisodeEnd.GAVE_UP


def _last_words(ran: ExecResult | None) -> str:
    if ran is None:
        return ""
    text = (ran.stderr or ran.stdout).decode("utf-8", "replace").strip()
    return text[-400:]
