"""Objectives against a float64 reference written from the formulas, and finite differences."""

import math

import numpy as np
import pytest
import torch

from insitu.train.losses import OBJECTIVES, TokenStats, double_sided_is, dppo_tv, open_objective
from insitu.types import ConfigError

# logp, mu, advantage: fresh, drifted both ways with both signs, far apart, zero advantage.
CASES = [
    (-0.7, -0.7, 1.0),
    (-0.2, -1.5, 0.5),
    (-1.5, -0.2, 0.5),
    (-0.2, -1.5, -0.5),
    (-1.5, -0.2, -0.5),
    (-9.0, -2.0, -2.0),
    (-2.0, -9.0, 2.0),
    (-3.0, -3.1, 0.0),
]


def columns(dtype=torch.float64):
    return [torch.tensor(c, dtype=dtype) for c in zip(*CASES, strict=True)]


def reference_dppo(lp, lm, a, threshold=0.2, tau=1e-3):
    pi, mu = math.exp(lp), math.exp(lm)
    masked = (a > 0 and pi - mu > threshold) or (a < 0 and mu - pi > threshold)
    term = -(0 if masked else 1) * a * pi / mu + tau * math.log(pi / mu) ** 2
    gradient = -(0 if masked else 1) * a * pi / mu + 2 * tau * math.log(pi / mu)
    return term, gradient, not masked


def reference_double(lp, lm, a, low=0.2, high=4.0):
    r = math.exp(lp) / math.exp(lm)
    f = r if low < r < high else 0.0
    return -f * a * lp, -f * a, f != 0


@pytest.mark.parametrize(
    ("objective", "reference"), [(dppo_tv, reference_dppo), (double_sided_is, reference_double)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_terms_masks_and_gradients_are_the_formulas(objective, reference, dtype):
    logp, mu, advantage = columns(dtype)
    logp.requires_grad_()
    terms, kept = objective(logp, mu, advantage)
    terms.sum().backward()
    expected = [reference(*case) for case in CASES]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(terms.detach(), [e[0] for e in expected], rtol=tolerance)
    np.testing.assert_allclose(logp.grad, [e[1] for e in expected], rtol=tolerance, atol=1e-12)
    assert kept.tolist() == [e[2] for e in expected]


def test_both_masks_are_hit():
    for objective in (dppo_tv, double_sided_is):
        _, kept = objective(*columns())
        assert kept.any()
        assert not kept.all()


def test_dppo_gradient_is_a_finite_difference():
    logp, mu, advantage = columns()
    logp.requires_grad_()
    dppo_tv(logp, mu, advantage)[0].sum().backward()
    step = 1e-6
    for i in range(len(CASES)):
        moved = [logp.detach().clone() for _ in range(2)]
        moved[0][i] += step
        moved[1][i] -= step
        up, down = (dppo_tv(m, mu, advantage)[0][i].item() for m in moved)
        assert logp.grad[i].item() == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-9)


def test_double_sided_stops_the_ratios_gradient():
    # d/dlogp of −r·A·logp would be −r·A·(1 + logp) if the ratio carried a gradient.
    logp = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    double_sided_is(logp, torch.tensor([-2.0]).double(), torch.ones(1).double())[0].backward()
    assert logp.grad.item() == pytest.approx(-1.0)


def test_on_policy_both_are_the_plain_policy_gradient():
    advantage = torch.tensor([1.0, -0.5], dtype=torch.float64)
    for objective in OBJECTIVES.values():
        logp = torch.tensor([-0.4, -2.0], dtype=torch.float64, requires_grad=True)
        objective(logp, logp.detach(), advantage)[0].sum().backward()
        torch.testing.assert_close(logp.grad, -advantage)


def test_constants_are_set_and_unknown_ones_refused():
    logp, mu, advantage = columns()
    strict = open_objective("dppo_tv", {"threshold": 1e-9})
    assert strict(logp, mu, advantage)[1].sum() < dppo_tv(logp, mu, advantage)[1].sum()
    with pytest.raises(ConfigError, match="no 'treshold'"):
        open_objective("dppo_tv", {"treshold": 0.1})
    with pytest.raises(ConfigError, match="no loss 'ppo'"):
        open_objective("ppo", {})


def test_stats_are_means_over_tokens_however_they_are_cut():
    logp, mu, _ = columns()
    values = (logp * 2, torch.arange(8) % 3 > 0, logp - mu, -logp, torch.arange(8) < 4)
    whole = TokenStats.of(*values)
    parts = TokenStats()
    for rows in (slice(0, 3), slice(3, 8)):
        parts.add(TokenStats.of(*(v[rows] for v in values)))
    assert parts.metrics() == pytest.approx(whole.metrics())
    r = np.exp((logp - mu).numpy())
    assert whole.metrics()["k3"] == pytest.approx((r - 1 - np.log(r)).mean())
    assert whole.metrics()["k3_fresh"] == pytest.approx((r - 1 - np.log(r))[:4].mean())
    assert whole.metrics()["masked_share"] == pytest.approx(3 / 8)
