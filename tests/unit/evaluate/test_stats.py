import itertools
import math

import numpy as np
import pytest

from insitu.evaluate import stats


def brute_force_p(differences: list[float]) -> float:
    observed = abs(sum(differences)) - 1e-9
    signs = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(flips, differences, strict=True))) for flips in signs]
    return sum(s >= observed for s in sums) / len(sums)


def mcnemar_p(better: int, worse: int) -> float:
    """The exact McNemar test: two-sided binomial with chance one half."""
    n, k = better + worse, max(better, worse)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n)


def every_resample(values: list[float]) -> np.ndarray:
    return np.array([np.mean(r) for r in itertools.product(values, repeat=len(values))])


def test_the_mean_is_over_tasks_not_over_attempts() -> None:
    rates = stats.task_rates([[True, True, True, True], [False], [True, False]])
    assert rates.tolist() == [1.0, 0.0, 0.5]
    assert stats.pass_at_1(rates, seed=0).value == pytest.approx(0.5)


def test_the_bootstrap_is_the_distribution_of_all_resamples() -> None:
    values = [0.0, 0.25, 0.25, 1.0, 0.5]
    exact = every_resample(values)
    drawn = stats.bootstrap_means(np.array(values), seed=3, draws=200_000)
    for q in (0.025, 0.1, 0.5, 0.9, 0.975):
        low, high = np.quantile(exact, [q - 0.003, q + 0.003]) if 0.01 < q < 0.99 else (0, 1)
        assert low - 1e-9 <= np.quantile(drawn, q) <= high + 1e-9
    assert drawn.mean() == pytest.approx(exact.mean(), abs=2e-3)
    assert drawn.std() == pytest.approx(exact.std(), rel=1e-2)


def test_the_interval_is_the_normal_one_for_many_tasks() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 5, size=400) / 4
    estimate = stats.pass_at_1(values, seed=1)
    half = 1.959964 * values.std() / math.sqrt(len(values))
    assert estimate.low == pytest.approx(values.mean() - half, abs=2e-3)
    assert estimate.high == pytest.approx(values.mean() + half, abs=2e-3)
    assert (estimate.tasks, estimate.level) == (400, 0.95)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for i in range(300):
        values = (rng.random(60) < 0.3).astype(float)
        estimate = stats.pass_at_1(values, seed=i, draws=400)
        hits += estimate.low <= 0.3 <= estimate.high
    assert 0.90 <= hits / 300 <= 0.985


def test_all_or_nothing_has_the_exact_binomial_interval() -> None:
    none = stats.pass_at_1([0.0] * 100, seed=0)
    assert (none.value, none.low) == (0.0, 0.0)
    assert (1 - none.high) ** 100 == pytest.approx(0.025)
    every = stats.pass_at_1([1.0] * 100, seed=0)
    assert (every.low, every.high) == (pytest.approx(1 - none.high), 1.0)


def test_the_same_seed_gives_the_same_numbers() -> None:
    a, b = [0.0, 0.5, 1.0, 0.25] * 5, [0.5, 0.5, 1.0, 0.75] * 5
    assert stats.compare(a, b, seed=4) == stats.compare(a, b, seed=4)
    drawn = [stats.bootstrap_means(np.array(a), seed=seed, draws=9).tolist() for seed in (4, 4, 5)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("attempts", [1, 2, 3, 4])
def test_the_permutation_test_is_exact(attempts: int) -> None:
    rng = np.random.default_rng(attempts)
    for n in (1, 2, 5, 10):
        before, after = rng.integers(0, attempts + 1, size=(2, n)) / attempts
        p, method = stats.sign_flip_test(after - before, seed=0)
        assert method == "exact"
        assert p == pytest.approx(brute_force_p((after - before).tolist()))


def test_with_one_attempt_it_is_the_exact_mcnemar_test() -> None:
    for better, worse in [(0, 0), (1, 0), (10, 2), (7, 7), (30, 12), (90, 40)]:
        differences = np.array([1.0] * better + [-1.0] * worse + [0.0] * 50)
        p, method = stats.sign_flip_test(differences, seed=0)
        assert method == "exact"
        assert p == pytest.approx(mcnemar_p(better, worse), rel=1e-9)


def test_off_the_grid_flips_are_drawn() -> None:
    differences = np.random.default_rng(2).normal(0.3, 1.0, size=12)
    p, method = stats.sign_flip_test(differences, seed=0)
    assert method == "random"
    assert p == pytest.approx(brute_force_p(differences.tolist()), abs=0.006)
    assert stats.sign_flip_test(np.random.default_rng(3).random(80), seed=0)[0] == 1 / 100_001


def test_a_comparison_says_what_moved() -> None:
    before = [0.0, 0.5, 1.0, 0.0]
    test = stats.compare(before, [1.0, 0.5, 0.5, 0.5], seed=0)
    assert test.difference.value == pytest.approx(0.25)
    assert (test.better, test.worse) == (2, 1)
    same = stats.compare(before, before, seed=0)
    assert (same.p_value, same.difference.low, same.difference.high) == (1.0, 0.0, 0.0)


def test_pairing_narrows_the_interval() -> None:
    rng = np.random.default_rng(5)
    before = rng.random(200)
    after = before + 0.1 + rng.normal(0, 0.01, 200)
    test = stats.compare(before, after, seed=0)
    assert test.difference.high - test.difference.low < 0.01


@pytest.mark.parametrize("values", [[], [math.nan], [[0.5]]])
def test_nothing_to_estimate_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one task"):
        stats.pass_at_1(values, seed=0)


def test_different_tasks_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="not the same tasks"):
        stats.compare([1.0], [1.0, 0.0], seed=0)
