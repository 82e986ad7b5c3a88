"""Objectives of the RL step: short functions of log-probabilities, and where they come from.

All take, one entry per trainable token of the batch, float32 `[tokens]`:

- `logp`: log π, the policy being trained (carries the gradient);
- `mu`: log μ, as recorded when the token was sampled, by the version that sampled it;
- `advantage`: A of the token's episode;

and return each token's term of the loss and whether its policy-gradient part counts (bool).
The step's loss is the sum of the terms divided by the number of trainable tokens before masking,
so that masking some tokens does not weigh the others up, and packing changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from insitu.types import ConfigError


def dppo_tv(
    logp: Tensor, mu: Tensor, advantage: Tensor, *, threshold: float = 0.2, tau: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """Masked policy gradient on the direct ratio r = π/μ, with a squared log-ratio penalty.

        −m · A · r + τ · (log r)²,    r = exp(logp − mu)
        m = 0 where A > 0 and π − μ > threshold, or A < 0 and μ − π > threshold; else 1

    The gradient flows through r. Tokens whose probability has already moved by more than the
    threshold in the direction that the advantage asks for give no more push; the penalty holds
    for all tokens. Source: the probability-difference trust region of DPPO ("DPPO-TV", arXiv
    2602.04879) as prime-rl's default loss uses it.
    """
    log_ratio = logp - mu
    with torch.no_grad():
        moved = logp.exp() - mu.exp()
        kept = ~((advantage > 0) & (moved > threshold) | (advantage < 0) & (moved < -threshold))
    gain = kept * advantage * log_ratio.exp()
    return tau * log_ratio.square() - gain, kept


def double_sided_is(
    logp: Tensor, mu: Tensor, advantage: Tensor, *, low: float = 0.2, high: float = 4.0
) -> tuple[Tensor, Tensor]:
    """Direct importance sampling, cut on both sides.

        −sg[f(r)] · A · logp,    f(r) = r where low < r < high, else 0;    r = exp(logp − mu)

    sg stops the gradient. Source: GLM-5 (arXiv 2602.15763, equations 3-5) and SAO (arXiv
    2607.07508); the defaults are the bounds reported for coding, 1 − 0.8 and 1 + 3.
    """
    with torch.no_grad():
        ratio = (logp - mu).exp()
        kept = (ratio > low) & (ratio < high)
        weight = kept * ratio * advantage
    return -weight * logp, kept


Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

OBJECTIVES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "dppo_tv": dppo_tv,
    "double_sided_is": double_sided_is,
}


def open_objective(name: str, options: Mapping[str, float]) -> Objective:
    """The objective `name` with its constants set.

    Raises:
        ConfigError: no such objective, or it has no such constant.
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"no loss {name!r}", remedy=f"use one of {', '.join(OBJECTIVES)}")
    function = OBJECTIVES[name]
    known = set(function.__kwdefaults__ or {})
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"the loss {name} has no {unknown[0]!r}", remedy=f"use {', '.join(sorted(known))}"
        )
    return lambda logp, mu, advantage: function(logp, mu, advantage, **options)


@dataclass(kw_only=True, slots=True)
class TokenStats:
    """What the objective saw, added up over tokens in float64."""

    tokens: int = 0
    loss: float = 0.0
    k3: float = 0.0
    masked: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    ratio_min: float = float("inf")
    entropy: float = 0.0
    fresh: int = 0
    """Tokens sampled by the version that is being trained."""
    fresh_k3: float = 0.0

    @classmethod
    def of(
        cls,
        terms: Tensor,
        kept: Tensor,
        log_ratio: Tensor,
        entropies: Tensor,
        fresh: Tensor,
    ) -> "TokenStats":
        """From one pass's tokens, `[tokens]` each.

        k3 = r − 1 − log r, with r = π/μ and tokens from μ, estimates KL(μ‖π) without bias and
        is never negative (Schulman 2020, "Approximating KL divergence").
        """
        ratio = log_ratio.double().exp()
        k3 = ratio - 1 - log_ratio.double()
        return cls(
            tokens=len(terms),
            loss=float(terms.double().sum()),
            k3=float(k3.sum()),
            masked=float((~kept).sum()),
            ratio=float(ratio.sum()),
            ratio_max=float(ratio.max()),
            ratio_min=float(ratio.min()),
            entropy=float(entropies.double().sum()),
            fresh=int(fresh.sum()),
            fresh_k3=float(k3[fresh].sum()),
        )

    def add(self, other: "TokenStats") -> None:
        """Add another pass's tokens."""
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.ratio_min = min(self.ratio_min, other.ratio_min)
        for name in ("tokens", "loss", "k3", "masked", "ratio", "entropy", "fresh", "fresh_k3"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def metrics(self) -> dict[str, float]:
        """Means per trainable token; `k3_fresh` measures numerics alone."""
        n = max(1, self.tokens)
        means = {
            "k3": self.k3 / n,
            "masked_share": self.masked / n,
            "ratio_mean": self.ratio / n,
            "ratio_max": self.ratio_max,
            "ratio_min": self.ratio_min,
            "entropy": self.entropy / n,
        }
        return means | ({"k3_fresh": self.fresh_k3 / self.fresh} if self.fresh else {})
