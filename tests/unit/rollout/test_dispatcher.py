import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.rollout.admission import Admission
from insitu.rollout.batches import form_batches
from insitu.rollout.dispatcher import Dispatcher, GroupPlan
from insitu.rollout.episode import Attempt
from insitu.rollout.patience import Patience
from insitu.types import (
    Episode,
    EpisodeEnd,
    Group,
    Reward,
    Sampling,
    Segment,
    Task,
    UsageError,
)


def make_task(name: str) -> Task:
    return Task(
        task_id=name,
        folder="/tasks",
        instruction="",
        layers=(),
        workdir="/home/dev/x",
        env_path="",
        agent_timeout_s=1,
        verifier_timeout_s=1,
    )


def make_episode(attempt: Attempt, *, end: EpisodeEnd, reward: float, version: int) -> Episode:
    segment = Segment(
        token_ids=(1, 2), trainable=(False, True), logprobs=(0.0, -1.0), versions=(-1, version)
    )
    return Episode(
        episode_id=attempt.episode_id,
        group_id=attempt.group_id,
        task_id=attempt.task.task_id,
        attempt=attempt.index,
        end=end,
        calls=(),
        segments=(segment,),
        changes=(),
        signals=(),
        reward=Reward(value=reward, formula="passed"),
        started_at=0.0,
        wall_s=0.0,
        seed=attempt.seed,
    )


class World:
    """Runs pretend episodes of random length and counts what the dispatcher does."""

    def __init__(self, rng: random.Random, *, fault_rate: float = 0.0) -> None:
        self.rng, self.fault_rate = rng, fault_rate
        self.version = 0
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.discarded: dict[str, str] = {}
        self.active = self.most_active = 0

    async def run(self, attempt: Attempt) -> Episode:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        version = self.version
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        self.active -= 1
        fault = self.rng.random() < self.fault_rate
        return make_episode(
            attempt,
            end=EpisodeEnd.FAULT if fault else EpisodeEnd.FINISHED,
            reward=float(self.rng.random() < 0.5),
            version=version,
        )

    def dispatcher(self, plans: list[GroupPlan], admission: Admission, **settings) -> Dispatcher:
        return Dispatcher(
            plans=iter(plans),
            run_episode=self.run,
            admission=admission,
            sampling=Sampling(),
            on_start=lambda a: self.started.update([a.episode_id]),
            on_end=lambda e: self.ended.update([e.episode_id]),
            on_discard=self.discarded.__setitem__,
            **({"group_size": 3, "in_flight": 5, "retries": 2, "pause_s": 0.0} | settings),
        )


def plans(n: int) -> list[GroupPlan]:
    return [GroupPlan(group_id=f"g{i:04d}", task=make_task(f"t{i}"), seed=i) for i in range(n)]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), staleness=st.integers(0, 3), fault_rate=st.sampled_from([0, 0.1])
)
def test_every_episode_starts_and_ends_once_and_no_group_is_lost(seed, staleness, fault_rate):
    world = World(random.Random(seed), fault_rate=fault_rate)
    admission = Admission(groups_per_step=2, staleness=staleness)
    trained: list[str] = []
    lags: list[int] = []

    async def main() -> None:
        dispatcher = world.dispatcher(plans(11), admission)
        source = form_batches(
            dispatcher.groups(),
            size=2,
            refuse=lambda g: "" if g.has_signal else "no signal",
            discard=dispatcher.discard,
        )
        async for batch in source:
            trained.extend(g.group_id for g in batch)
            lags.extend(world.version - g.oldest_version for g in batch)
            await asyncio.sleep(0)
            world.version += 1
            dispatcher.served(world.version)
            assert admission.capacity <= (staleness + 1) * 2

    asyncio.run(asyncio.wait_for(main(), 20))
    assert world.started == world.ended
    assert set(world.started.values()) <= {1}
    assert len(trained) == len(set(trained))
    assert not set(trained) & set(world.discarded)
    # What is neither trained nor discarded is a last batch that did not fill up.
    assert 11 - len(trained) - len(world.discarded) < 2
    assert world.most_active <= 5
    if staleness == 0:
        assert set(lags) <= {0}


def test_a_group_is_whole_and_its_episodes_are_in_order():
    world = World(random.Random(1), fault_rate=0.2)

    async def main() -> list[Group]:
        return [
            g
            async for g in world.dispatcher(
                plans(5), Admission(groups_per_step=9, staleness=0), retries=50
            ).groups()
        ]

    groups = asyncio.run(main())
    assert len(groups) == 5
    for group in groups:
        assert [e.attempt for e in group.episodes] == [0, 1, 2]
        assert all(e.end is not EpisodeEnd.FAULT for e in group.episodes)


def test_a_group_without_retries_left_is_discarded_and_makes_room():
    world = World(random.Random(1), fault_rate=1.0)
    admission = Admission(groups_per_step=1, staleness=0)

    async def main() -> list[Group]:
        return [g async for g in world.dispatcher(plans(2), admission, retries=0).groups()]

    assert asyncio.run(main()) == []
    assert world.discarded == {"g0000": "faults", "g0001": "faults"}
    assert world.started == world.ended


def test_episodes_from_before_a_resume_are_not_run_again():
    world = World(random.Random(1))
    attempt = Attempt(
        episode_id="g0000-1",
        group_id="g0000",
        task=make_task("t0"),
        index=1,
        seed=1,
        sampling=Sampling(),
    )
    old = make_episode(attempt, end=EpisodeEnd.FINISHED, reward=1.0, version=0)
    plan = GroupPlan(group_id="g0000", task=make_task("t0"), seed=0, done=(old,))

    async def main() -> list[Group]:
        admission = Admission(groups_per_step=1, staleness=0)
        return [g async for g in world.dispatcher([plan], admission).groups()]

    (group,) = asyncio.run(main())
    assert group.episodes[1] is old
    assert set(world.started) == {"g0000-0", "g0000-2"}


def test_a_bug_in_an_episode_stops_the_run():
    world = World(random.Random(1))

    async def broken(attempt: Attempt) -> Episode:
        raise KeyError("a bug")

    world.run = broken  # type: ignore[method-assign]

    async def main() -> None:
        async for _ in world.dispatcher(
            plans(3), Admission(groups_per_step=3, staleness=0)
        ).groups():
            pass

    with pytest.raises(KeyError, match="a bug"):
        asyncio.run(asyncio.wait_for(main(), 10))


def test_nothing_is_begun_that_the_last_step_could_not_use():
    admission = Admission(groups_per_step=2, staleness=3, limit=4, admitted=3)
    assert admission.capacity == 1
    admission.admit()
    with pytest.raises(ValueError, match="no capacity"):
        admission.admit()
    admission.discard()
    assert admission.capacity == 1


def test_stale_groups_are_refused_when_the_batch_is_full():
    admission = Admission(groups_per_step=1, staleness=1, version=5)
    assert admission.is_stale(3)
    assert not admission.is_stale(4)
    assert not admission.is_stale(-1)


def test_nothing_but_faults_ends_the_run():
    world = World(random.Random(1), fault_rate=1.0)

    async def main() -> None:
        admission = Admission(groups_per_step=1, staleness=0)
        async for _ in world.dispatcher(plans(100), admission, retries=1).groups():
            pass

    with pytest.raises(UsageError, match="nothing but faults, 8 times in a row"):
        asyncio.run(asyncio.wait_for(main(), 20))
    assert len(world.discarded) == 8


def test_patience_lasts_while_something_succeeds():
    patience = Patience()
    for _ in range(5):
        for _ in range(7):
            patience.lost()
        patience.kept()
    for _ in range(7):
        patience.lost()
    patience.fault("EngineError: gone")
    with pytest.raises(UsageError, match="the last: EngineError: gone"):
        patience.lost()
