import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.rollout.samples import batch_samples, group_advantages
from insitu.types import Episode, EpisodeEnd, Group, Reward, Segment


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20))
def test_advantages_sum_to_zero_and_keep_the_rewards_distances(rewards):
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-9 * len(rewards) * 10)
    for (r, a), (s, b) in zip(
        zip(rewards, advantages, strict=True),
        zip(rewards[1:], advantages[1:], strict=True),
        strict=False,
    ):
        assert a - b == pytest.approx(r - s, abs=1e-9)


def test_an_empty_group_is_refused():
    with pytest.raises(ValueError, match="without episodes"):
        group_advantages([])


def episode(name: str, reward: float, segments: tuple[Segment, ...]) -> Episode:
    return Episode(
        episode_id=name, group_id="g", task_id="t", attempt=0, end=EpisodeEnd.FINISHED, calls=(),
        segments=segments, changes=(), signals=(), reward=Reward(value=reward, formula=""),
        started_at=0, wall_s=0, seed=0,
    )  # fmt: skip


def segment(version: int, sampled: bool = True) -> Segment:
    return Segment(
        token_ids=(1, 2), trainable=(False, sampled), logprobs=(0.0, -1.0),
        versions=(-1, version if sampled else -1),
    )  # fmt: skip


def test_segments_of_an_episode_share_its_advantage_and_empty_ones_are_left_out():
    group = Group(
        group_id="g",
        task_id="t",
        episodes=(
            episode("a", 1.0, (segment(3), segment(4))),
            episode("b", 0.0, (segment(5), segment(5, sampled=False))),
        ),
    )
    samples = batch_samples([group], version=6)
    assert [(s.episode_id, s.advantage, s.lag) for s in samples] == [
        ("a", 0.5, 3), ("a", 0.5, 2), ("b", -0.5, 1),
    ]  # fmt: skip
