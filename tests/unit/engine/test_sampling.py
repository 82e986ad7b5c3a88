import numpy as np
import pytest
import torch

from insitu.engine.embedded.sampling import Draw, sample, uniforms

SEED = 1234


def draw(rows: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Draw:
    return Draw(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_p=np.full(rows, top_p, dtype=np.float32),
        top_k=np.full(rows, top_k, dtype=np.int64),
        seeds=np.full(rows, SEED, dtype=np.uint64),
        positions=np.arange(rows, dtype=np.int64),
    )


def expected(logits: torch.Tensor, temperature: float, top_p: float, top_k: int) -> torch.Tensor:
    """The distribution by the book, one row."""
    p = (logits.double() / temperature).softmax(-1)
    order = p.argsort(descending=True)
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    before = p[order].cumsum(0) - p[order]
    if top_p < 1:
        p[order[before >= top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.0, 0.8, 0), (1.3, 1.0, 5), (0.9, 0.7, 6)],
)
def test_samples_follow_the_distribution(temperature: float, top_p: float, top_k: int) -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(1)) * 2
    n = 20_000
    settings = draw(n, temperature=temperature, top_p=top_p, top_k=top_k)
    tokens, logprobs = sample(logits.expand(n, -1).clone(), settings)
    p = expected(logits, temperature, top_p, top_k)
    np.testing.assert_allclose(logprobs, p.log()[tokens], atol=1e-5)
    counts = np.bincount(tokens, minlength=20)
    possible = (p * n >= 5).numpy()
    assert counts[(p == 0).numpy()].sum() == 0
    wanted = (p * n).numpy()[possible]
    chi2 = ((counts[possible] - wanted) ** 2 / wanted).sum()
    freedom = possible.sum() - 1
    # Mean `freedom`, variance twice that: six deviations are never reached by chance.
    assert chi2 < freedom + 6 * np.sqrt(2 * freedom)


def test_greedy_gives_the_untempered_logprob() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(2))
    tokens, logprobs = sample(logits.clone(), draw(4, temperature=0.0, top_k=1, top_p=0.1))
    assert tokens == logits.argmax(-1).tolist()
    np.testing.assert_allclose(logprobs, logits.log_softmax(-1).max(-1).values, atol=1e-6)


def test_rows_do_not_depend_on_each_other() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    mixed = draw(6)
    mixed.temperature[:] = [0, 1, 0.5, 1, 2, 0]
    mixed.top_p[:] = [1, 0.5, 1, 1, 0.9, 0.5]
    mixed.top_k[:] = [0, 0, 3, 0, 10, 2]
    together = sample(logits.clone(), mixed)
    for i in range(6):
        alone = Draw(*(getattr(mixed, f)[i : i + 1] for f in mixed.__slots__))
        token, logprob = sample(logits[i : i + 1].clone(), alone)
        assert token == together[0][i : i + 1]
        assert logprob == pytest.approx(together[1][i : i + 1], abs=1e-12)


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 1000)
    positions = np.tile(np.arange(1000, dtype=np.int64), 100)
    u = uniforms(seeds, positions)
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    counts = np.histogram(u, bins=50, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 6 * np.sqrt(98)
    table = u.reshape(100, 1000)
    for lag in (
        (table[:, :-1].ravel(), table[:, 1:].ravel()),
        (table[:-1].ravel(), table[1:].ravel()),
    ):
        assert abs(np.corrcoef(*lag)[0, 1]) < 0.02
