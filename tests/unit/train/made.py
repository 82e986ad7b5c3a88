"""Samples and runs for the trainer's tests."""

import numpy as np

from insitu.types import Sample, Segment


def sample(length: int, seed: int, *, advantage: float = 1.0, version: int = 0, vocabulary=512):
    """A segment of random tokens, about a third of them sampled, with plausible log-probs."""
    rng = np.random.default_rng(seed)
    trainable = [bool(i and rng.random() < 0.35) for i in range(length)]
    return Sample(
        segment=Segment(
            token_ids=tuple(int(t) for t in rng.integers(0, vocabulary, length)),
            trainable=tuple(trainable),
            logprobs=tuple(float(-6 - rng.random()) if t else 0.0 for t in trainable),
            versions=tuple(version if t else -1 for t in trainable),
        ),
        advantage=advantage,
        lag=0,
    )


def batch(step: int = 0, size: int = 6):
    """A batch of one step, the same for the same step."""
    return [
        sample(40 + 13 * i, seed=100 * step + i, advantage=(-1) ** i * 0.5, version=step)
        for i in range(size)
    ]
