"""Rates with their intervals, and paired comparisons, with tasks as the unit of sampling.

The attempts at one task are not independent of each other, so everything here takes one number
per task: the share of its attempts that passed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 10_000
LEVEL = 0.95

_CHUNK = 2_000_000  # resampled numbers held at a time
_LARGEST_GRID = 200_000  # steps of the exact null distribution
_RANDOM_FLIPS = 100_000
_SAME = 1e-12  # differences smaller than this are rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its interval.

    Example: `Estimate(value=0.42, low=0.35, high=0.49, tasks=120)`.
    """

    value: float
    low: float
    high: float
    tasks: int
    """How many tasks it rests on."""
    level: float = LEVEL
    """Confidence of the interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """How much better one policy is than another on the same tasks.

    Example: `PairedTest(difference=Estimate(value=0.12, …), p_value=0.003, better=31, worse=12,
    method="exact")`.
    """

    difference: Estimate
    """Mean over tasks of after minus before."""
    p_value: float
    """Two-sided, of the sign-flip permutation test; never 0."""
    better: int
    """Tasks with a higher rate after than before."""
    worse: int
    method: str
    """`exact`, or `random` with 100,000 random flips."""


def task_rates(outcomes: Sequence[Sequence[bool]]) -> Floats:
    """Share of passed attempts for each task; every task needs at least one attempt."""
    return np.array([sum(attempts) / len(attempts) for attempts in outcomes], dtype=np.float64)


def pass_at_1(rates: Floats | Sequence[float], *, seed: int, draws: int = DRAWS) -> Estimate:
    """Mean pass rate over tasks, with a percentile bootstrap interval over tasks.

    Where all tasks have rate 0, or all have rate 1, resampling shows no spread; then the interval
    is Clopper and Pearson's (1934) for as many successes or failures as there are tasks.

    Args:
        rates: one pass rate in [0, 1] per task, at least one.
        seed: of the resampling; the same seed gives the same interval.
        draws: resamples.
    """
    values = _checked(rates)
    n = len(values)
    if values.max() == 0.0:
        return Estimate(value=0.0, low=0.0, high=1.0 - _tail(n), tasks=n)
    if values.min() == 1.0:
        return Estimate(value=1.0, low=_tail(n), high=1.0, tasks=n)
    return mean_estimate(values, seed=seed, draws=draws)


def mean_estimate(values: Floats | Sequence[float], *, seed: int, draws: int = DRAWS) -> Estimate:
    """Mean of one number per task, with a percentile bootstrap interval over tasks.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    values = _checked(values)
    low, high = _quantiles(bootstrap_means(values, seed=seed, draws=draws))
    return Estimate(value=float(values.mean()), low=low, high=high, tasks=len(values))


def bootstrap_means(values: Floats, *, seed: int, draws: int) -> Floats:
    """Means of `draws` resamples with replacement, each as large as `values`."""
    rng = np.random.default_rng(seed)
    n = len(values)
    means = np.empty(draws)
    rows = max(1, _CHUNK // n)
    for start in range(0, draws, rows):
        stop = min(start + rows, draws)
        means[start:stop] = values[rng.integers(0, n, size=(stop - start, n))].mean(axis=1)
    return means


def compare(
    before: Floats | Sequence[float],
    after: Floats | Sequence[float],
    *,
    seed: int,
    draws: int = DRAWS,
) -> PairedTest:
    """Compare two policies on the same tasks in the same order.

    The interval resamples tasks with both of their rates. The test asks how often random exchange
    of the two policies within each task gives a mean difference at least as large.

    Raises:
        ValueError: the two have different numbers of tasks, or none.
    """
    a, b = _checked(before), _checked(after)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} tasks before, {len(b)} after: not the same tasks")
    differences = b - a
    p_value, method = sign_flip_test(differences, seed=seed)
    return PairedTest(
        difference=mean_estimate(differences, seed=seed, draws=draws),
        p_value=p_value,
        better=int((differences > _SAME).sum()),
        worse=int((differences < -_SAME).sum()),
        method=method,
    )


def sign_flip_test(differences: Floats, *, seed: int) -> tuple[float, str]:
    """Two-sided p-value of the paired permutation test, and how it was found.

    Under the null hypothesis each task's difference is as likely with the other sign. Rates of a
    few attempts lie on a common grid, on which the distribution of the sum is a product of
    two-term polynomials: exact for any number of tasks. With one attempt per task this is the
    exact McNemar test. Off the grid it falls back to random flips, counted with the observed one
    (Phipson and Smyth 2010), so that the p-value is never 0.
    """
    moved = differences[np.abs(differences) > _SAME]
    if not len(moved):
        return 1.0, "exact"
    whole = _on_grid(moved)
    if whole is not None:
        return _exact(whole), "exact"
    rng = np.random.default_rng(seed)
    observed = abs(moved.sum()) - _SAME
    rows = max(1, _CHUNK // len(moved))
    extreme = 0
    for start in range(0, _RANDOM_FLIPS, rows):
        size = (min(rows, _RANDOM_FLIPS - start), len(moved))
        signs = rng.integers(0, 2, size=size) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= observed).sum())
    return (extreme + 1) / (_RANDOM_FLIPS + 1), "random"


def _on_grid(differences: Floats) -> list[int] | None:
    """The absolute differences as multiples of their common unit; None without a usable one."""
    parts = [Fraction(abs(float(d))).limit_denominator(1000) for d in differences]
    if any(abs(float(p) - abs(d)) > _SAME for p, d in zip(parts, differences, strict=True)):
        return None
    unit = math.lcm(*(p.denominator for p in parts))
    whole = [int(p * unit) for p in parts]
    if sum(whole) > _LARGEST_GRID:
        return None
    return [w if d > 0 else -w for w, d in zip(whole, differences, strict=True)]


def _exact(differences: list[int]) -> float:
    """Chance of a sum of randomly signed differences at least as far from 0 as the given one."""
    reach = sum(abs(d) for d in differences)
    chance = np.zeros(2 * reach + 1)  # index = sum + reach
    chance[reach] = 1.0
    for d in map(abs, differences):
        chance = (np.roll(chance, d) + np.roll(chance, -d)) / 2
    observed = abs(sum(differences))
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(chance[sums >= observed].sum()))


def _quantiles(means: Floats) -> tuple[float, float]:
    tail = (1.0 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def _tail(n: int) -> float:
    """The lower Clopper-Pearson limit for n successes in n trials."""
    return float(((1.0 - LEVEL) / 2) ** (1.0 / n))


def _checked(values: Floats | Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("one finite number per task is needed, for at least one task")
    return array
