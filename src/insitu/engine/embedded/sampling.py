"""Sampling for a whole batch at once, with log-probabilities of what was really sampled from.

A token is drawn by inverting the cumulative distribution at one uniform number. The number
comes from a counter-based generator keyed by (seed, position), so that it does not depend on
the batch, on other requests or on how often the engine was called.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own convention
from torch import Tensor

BLOCK = 64
"""Tokens whose probabilities are summed before any running sum is taken."""
_BELOW_ONE = 1.0 - 2.0**-40
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """[rows] numbers in [0, 1) that depend on nothing but each row's seed and position.

    48 bits each: the largest is far enough below 1 that scaling never rounds up to the total.
    """
    counters = positions.astype(np.uint64) * _GOLDEN
    bits = _mix(_mix(seeds + _GOLDEN) + counters)
    return np.asarray((bits >> np.uint64(16)) * 2.0**-48, dtype=np.float64)


@dataclass(slots=True)
class Draw:
    """How each row of a batch is sampled; arrays of [rows]."""

    temperature: npt.NDArray[np.float32]
    """0 is greedy."""
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    """0 keeps all."""
    seeds: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]
    """Position in the sequence of the token to be sampled."""


def sample(logits: Tensor, draw: Draw) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [rows, vocab] float32 (overwritten), and its log-probability.

    Top-k is applied first, then top-p over what is left, as other engines do. A greedy row's
    log-probability is the untempered model's.
    """
    greedy = draw.temperature <= 0.0
    if not np.all(greedy | (draw.temperature == 1.0)):
        scale = np.where(greedy, 1.0, draw.temperature).astype(np.float32)
        logits /= torch.from_numpy(scale).to(logits.device)[:, None]
    cut = ~greedy & ((draw.top_p < 1.0) | (draw.top_k > 0))
    if cut.any():
        rows = torch.from_numpy(np.flatnonzero(cut)).to(logits.device)
        logits[rows] = _truncate(logits[rows], draw.top_p[cut], draw.top_k[cut])
    p = logits.softmax(-1)
    if greedy.all():
        tokens = p.argmax(-1, keepdim=True)
    else:
        u = torch.from_numpy(uniforms(draw.seeds, draw.positions)).to(logits.device)
        tokens = _invert(p, u[:, None])
        if greedy.any():
            best = torch.from_numpy(greedy).to(logits.device)[:, None]
            tokens = torch.where(best, p.argmax(-1, keepdim=True), tokens)
    # Softmax's sum differs from 1 by rounding only: the same in every row and every program.
    logprobs = p.gather(1, tokens).double().log()
    return tokens[:, 0].tolist(), logprobs[:, 0].tolist()


def _invert(p: Tensor, u: Tensor) -> Tensor:
    """[rows, 1]: the token at which the running sum of `p` [rows, vocab] passes `u` [rows, 1].

    In two steps, blocks then tokens, since running sums are slow. Each step looks for the first
    sum above a point that is below the total, so that a token of probability 0 is never taken.
    """
    vocab = p.shape[1]
    padded = p if vocab % BLOCK == 0 else F.pad(p, (0, -vocab % BLOCK))
    blocks = padded.view(len(p), -1, BLOCK)
    running = blocks.sum(-1).double().cumsum(-1)
    points = u * running[:, -1:]
    block = torch.searchsorted(running, points, right=True).clamp_(max=blocks.shape[1] - 1)
    ends = running.gather(1, block)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(-1)
    begins = torch.where(block > 0, running.gather(1, (block - 1).clamp_(min=0)), 0.0)
    share = ((points - begins) / (ends - begins)).clamp_(0.0, _BELOW_ONE)
    offset = torch.searchsorted(inside, share * inside[:, -1:], right=True)
    return block * BLOCK + offset.clamp_(max=BLOCK - 1)


def _truncate(
    logits: Tensor, top_p: npt.NDArray[np.float32], top_k: npt.NDArray[np.int64]
) -> Tensor:
    """`logits` [rows, vocab] with -inf outside each row's top-k and nucleus."""
    vocab = logits.shape[1]
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    keep = torch.from_numpy(np.where(top_k > 0, top_k, vocab)).to(logits.device)[:, None]
    ordered.masked_fill_(torch.arange(vocab, device=logits.device) >= keep, -torch.inf)
    p = ordered.softmax(-1)
    before = p.cumsum(-1) - p
    limit = torch.from_numpy(top_p).to(logits.device)[:, None]
    # The most likely token always stays: nothing comes before it. 1.0 must cut nothing, also
    # where the running sum rounds to it early.
    ordered.masked_fill_((before >= limit) & (limit < 1.0), -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)
