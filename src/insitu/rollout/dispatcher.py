"""Keeps episodes in flight, retries faults, and hands over groups as they complete.

One task per group; the episodes of a group run side by side. Every episode that is started is
told to `on_start` before anything runs and to `on_end` exactly once. An episode that ends in a
fault is retried as a new episode of the same group; a group whose retries are used up is
discarded with that reason; where that happens to many groups in a row, the run cannot work and
ends. The dispatcher knows neither the trainer nor the ledger.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from insitu.kit.log import get_log
from insitu.rollout.admission import Admission
from insitu.rollout.episode import Attempt
from insitu.rollout.patience import Patience
from insitu.types import Episode, EpisodeEnd, Group, Sampling, Task

_log = get_log("rollout")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """A group to run: the task, and the episodes that it already has (after a resume)."""

    group_id: str
    task: Task
    seed: int
    done: tuple[Episode, ...] = ()
    started: Mapping[int, int] = field(default_factory=dict)
    """Episodes that each attempt has had, so that the next one gets a new name."""


@dataclass(kw_only=True)
class Dispatcher:
    """Runs groups within the limits of admission and of episodes in flight."""

    plans: Iterator[GroupPlan]
    run_episode: Callable[[Attempt], Awaitable[Episode]]
    admission: Admission
    sampling: Sampling
    group_size: int
    in_flight: int
    """Episodes at most at the same time."""
    retries: int
    """Faults per group that are retried before it is discarded."""
    pause_s: float = 1.0
    """Before the first retry of an episode; doubled with each, ten times as long at most."""
    on_start: Callable[[Attempt], None]
    on_end: Callable[[Episode], None]
    on_discard: Callable[[str, str], None]
    """Called with a group's id and the reason."""
    _ready: asyncio.Queue[Group | None] = field(default_factory=asyncio.Queue)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _failure: BaseException | None = None
    _patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.in_flight)

    async def groups(self) -> AsyncGenerator[Group, None]:
        """Completed groups in order of completion; ends when the plans are used up.

        Leaving the iteration cancels what is in flight.
        """
        feeder = asyncio.create_task(self._feed())
        try:
            while (group := await self._ready.get()) is not None:
                yield group
            if self._failure is not None:
                raise self._failure
        finally:
            for task in (feeder, *self._running):
                task.cancel()
            await asyncio.gather(feeder, *self._running, return_exceptions=True)

    def served(self, version: int) -> None:
        """Tell that the engine now serves `version`; more groups may be admitted."""
        self.admission.version = version
        self._changed.set()

    def discard(self, group_id: str, reason: str) -> None:
        """Tell that a group handed over will not be trained; another may take its place."""
        self.admission.discard()
        self.on_discard(group_id, reason)
        self._changed.set()

    async def _feed(self) -> None:
        for plan in self.plans:
            while self.admission.capacity <= 0:
                self._changed.clear()
                await self._changed.wait()
            # One free slot is enough to start: the group's other episodes queue behind it.
            async with self._slots:
                pass
            self.admission.admit()
            task = asyncio.create_task(self._run_group(plan), name=plan.group_id)
            self._running.add(task)
            task.add_done_callback(self._finished)
        await asyncio.gather(*self._running)
        self._ready.put_nowait(None)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug, not a fault of the system: it must stop the run, not hide in a task.
            self._failure = error
            self._ready.put_nowait(None)

    async def _run_group(self, plan: GroupPlan) -> None:
        have = {e.attempt: e for e in plan.done}
        retries = [self.retries]
        episodes = await asyncio.gather(
            *(self._attempt(plan, i, retries) for i in range(self.group_size) if i not in have)
        )
        if any(e is None for e in episodes):
            self.discard(plan.group_id, "faults")
            self._patience.lost()
            return
        self._patience.kept()
        have |= {e.attempt: e for e in episodes if e is not None}
        ordered = tuple(have[i] for i in sorted(have))
        await self._ready.put(
            Group(group_id=plan.group_id, task_id=plan.task.task_id, episodes=ordered)
        )

    def _name_attempt(self, plan: GroupPlan, index: int, tries: int) -> Attempt:
        suffix = f"-r{tries}" if tries else ""
        return Attempt(
            episode_id=f"{plan.group_id}-{index}{suffix}",
            group_id=plan.group_id,
            task=plan.task,
            index=index,
            seed=plan.seed * 1000 + index,
            sampling=self.sampling,
        )

    async def _attempt(self, plan: GroupPlan, index: int, retries: list[int]) -> Episode | None:
        """Run until it ends without a fault; None when the group's retries are used up."""
        tries = plan.started.get(index, 0)
        while True:
            attempt = self._name_attempt(plan, index, tries)
            async with self._slots:
                self.on_start(attempt)
                episode = await self.run_episode(attempt)
                self.on_end(episode)
            if episode.end is not EpisodeEnd.FAULT:
                return episode
            _log.info("%s: %s", episode.episode_id, episode.note)
            self._patience.fault(episode.note)
            if retries[0] <= 0:
                return None
            retries[0] -= 1
            tries += 1
            await asyncio.sleep(self.pause_s * min(2.0 ** (tries - 1), 10.0))
