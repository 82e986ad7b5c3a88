"""One episode: a product at work on a task in a sandbox, its calls recorded, its diff judged."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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
        parts = _Parts()
        try:
            await self._work(attempt.task, key, clock, parts)
        except BoundaryError as error:
            parts.fault = _named(error)
        finally:
            self._close(key, parts)
        if not parts.fault:
            await self._judge(attempt.task, clock, parts)
        return Episode(
            episode_id=attempt.episode_id,
            group_id=attempt.group_id,
            task_id=attempt.task.task_id,
            attempt=attempt.index,
            end=parts.end,
            calls=parts.calls,
            segments=parts.segments,
            changes=parts.changes,
            signals=parts.signals,
            reward=parts.reward,
            started_at=started,
            wall_s=time.time() - started,
            seed=attempt.seed,
            note=parts.fault or _last_words(parts.ran),
            timings=clock.laps | {"engine": sum(c.latency_s for c in parts.calls)},
        )

    async def _work(self, task: Task, key: str, clock: "_Stopwatch", parts: "_Parts") -> None:
        sandbox = await self.backend.create(self.spec(task))
        clock.lap("sandbox")
        try:
            parts.ran = await self.launch(sandbox, task, key)
            clock.lap("product")
            parts.changes = await sandbox.changes()
        finally:
            await sandbox.destroy()
            clock.lap("sandbox")

    def _close(self, key: str, parts: "_Parts") -> None:
        try:
            recording = self.gate.close(key)
        except BoundaryError as error:
            parts.fault = parts.fault or _named(error)
            return
        parts.calls, parts.segments = recording.calls, recording.segments
        parts.stop = recording.stop
        if recording.stop == "engine_fault" and not parts.fault:
            parts.fault = _named(EngineError("the engine did not answer the product's call"))

    async def _judge(self, task: Task, clock: "_Stopwatch", parts: "_Parts") -> None:
        try:
            verdict = await self.judge(task, parts.changes)
        except BoundaryError as error:
            parts.fault = _named(error)
            return
        clock.lap("verify")
        parts.signals = self.score(parts.end, parts.calls, parts.changes, verdict)
        parts.reward = self.reward(parts.signals)


@dataclass(slots=True)
class _Parts:
    """What is known of an episode while it runs."""

    ran: ExecResult | None = None
    changes: tuple[Change, ...] = ()
    calls: tuple[Call, ...] = ()
    segments: tuple[Segment, ...] = ()
    stop: str = ""
    fault: str = ""
    signals: tuple[Signal, ...] = ()
    reward: Reward = field(default_factory=lambda: Reward(value=0.0, formula=""))

    @property
    def end(self) -> EpisodeEnd:
        if self.fault or self.ran is None:
            return EpisodeEnd.FAULT
        if self.ran.timed_out:
            return EpisodeEnd.TIMED_OUT
        if self.stop in (EpisodeEnd.TURN_LIMIT, EpisodeEnd.CONTEXT_LIMIT):
            return EpisodeEnd(self.stop)
        return EpisodeEnd.FINISHED if self.ran.exit_code == 0 else EpisodeEnd.GAVE_UP


class _Stopwatch:
    """Seconds by stage; laps of the same name add up."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now


def _named(error: BoundaryError) -> str:
    return f"{type(error).__name__}: {error}"


def _last_words(ran: ExecResult | None) -> str:
    if ran is None:
        return ""
    text = (ran.stderr or ran.stdout).decode("utf-8", "replace").strip()
    return text[-400:]
