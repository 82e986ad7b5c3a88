"""Finished groups → samples for the trainer."""

from collections.abc import Iterable

from insitu.types import Group, Sample


def group_advantages(rewards: list[float]) -> list[float]:
    """Each reward minus the group's mean, A_i = R_i - mean_j R_j.

    Neither divided by the group's standard deviation, which inflates tiny differences between
    attempts that are all good or all bad, nor by length: Liu et al., "Understanding
    R1-Zero-Like Training" (Dr. GRPO), arXiv 2503.20783, section 3.

    Raises:
        ValueError: there are no rewards.
    """
    if not rewards:
        raise ValueError("a group without episodes has no advantages")
    mean = sum(rewards) / len(rewards)
    return [r - mean for r in rewards]


def batch_samples(groups: Iterable[Group], *, version: int) -> list[Sample]:
    """One sample per segment with sampled tokens; an episode's segments share its advantage.

    Args:
        groups: what the step trains on, in order.
        version: the trainer's version before the step; a sample's lag is counted from it.
    """
    return [
        Sample(
            segment=segment,
            advantage=advantage,
            lag=version - segment.oldest_version,
            episode_id=episode.episode_id,
            group_id=group.group_id,
        )
        for group in groups
        for episode, advantage in zip(
            group.episodes, group_advantages([e.reward.value for e in group.episodes]), strict=True
        )
        for segment in episode.segments
        if segment.sampled
    ]
