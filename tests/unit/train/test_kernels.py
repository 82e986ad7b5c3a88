"""Hand-written backward passes against autograd's, in float64."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from insitu.train.kernels import (
    BLOCK,
    HEAD_ROWS,
    DocumentAttention,
    HeadCrossEntropy,
    HeadLogProbs,
    RMSNorm,
    SwiGLU,
)


def leaves(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def agree(ours, stock, inputs, tolerance=1e-9):
    results = []
    for function in (ours, stock):
        out = function(*inputs)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append((out, *torch.autograd.grad((out * weights).sum(), inputs)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("tokens", [1, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 9])
def test_document_attention(tokens):
    def stock(q, k, v):
        k, v = (x.repeat_interleave(2, 0) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)

    inputs = leaves((4, tokens, 8), (2, tokens, 8), (2, tokens, 8))
    # k's and v's gradients are summed in float32.
    agree(lambda q, k, v: DocumentAttention.apply(q, k, v, 0.3), stock, inputs, tolerance=1e-5)


def test_rms_norm():
    inputs = [x.detach().float().requires_grad_() for x in leaves((3, 5, 16), (16,))]
    agree(
        lambda x, w: RMSNorm.apply(x, w, 1e-6),
        lambda x, w: w * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
        inputs,
        tolerance=1e-5,
    )


def test_swiglu():
    agree(SwiGLU.apply, lambda g, u: F.silu(g) * u, leaves((6, 9), (6, 9)))


@pytest.mark.parametrize("rows", [1, HEAD_ROWS, HEAD_ROWS + 3])
def test_head_losses(rows):
    hidden, head = leaves((rows, 6), (11, 6))
    targets = torch.arange(rows) % 11
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(1))

    def stock(h, w):
        each = F.cross_entropy(h @ w.t(), targets, reduction="none")
        return (each * weights).sum().float()

    def ours(h, w):
        return HeadCrossEntropy.apply(h, w, targets, weights, True)[0]

    agree(ours, stock, [hidden, head], tolerance=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_head_log_probabilities_and_entropies(temperature):
    hidden, head = leaves((HEAD_ROWS + 3, 6), (11, 6))
    targets = torch.arange(HEAD_ROWS + 3) % 11

    def stock(h, w):
        logp = torch.log_softmax(h @ w.t() / temperature, -1)
        return logp.gather(1, targets[:, None])[:, 0].float()

    agree(
        lambda h, w: HeadLogProbs.apply(h, w, targets, temperature)[0],
        stock,
        [hidden, head],
        tolerance=1e-4,
    )
    entropies = HeadLogProbs.apply(hidden, head, targets, temperature)[1]
    exact = torch.distributions.Categorical(logits=hidden @ head.t() / temperature).entropy()
    torch.testing.assert_close(entropies, exact.float(), rtol=1e-4, atol=1e-4)
