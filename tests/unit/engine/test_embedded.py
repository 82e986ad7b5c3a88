"""The embedded engine as its users see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from insitu.engine.embedded.decoder import Decoder
from insitu.engine.embedded.engine import EmbeddedEngine
from insitu.types import CorruptError, EngineError, PolicyVersion, TokenResult, UsageError
from tests.unit.engine.made import CONTEXT, VOCAB, always, as_policy, make_model, request, split

PROMPT = tuple(range(3, 43))


@asynccontextmanager
async def engine_of(folder: Path, **settings: Any) -> AsyncIterator[EmbeddedEngine]:
    settings = {"slots": 4, "context": CONTEXT, "dtype": "float32", **settings}
    engine = EmbeddedEngine(folder, **settings)
    try:
        yield engine
    finally:
        await engine.close()


@torch.inference_mode()
def hf_logits(folder: Path, ids: tuple[int, ...]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def hf_logprobs(folder: Path, prompt: tuple[int, ...], result: TokenResult) -> list[float]:
    """Log-probabilities of the result's tokens by one forward pass of the Hugging Face model."""
    logits = hf_logits(folder, prompt + result.token_ids)[len(prompt) - 1 : -1]
    rows = logits.log_softmax(-1)
    return rows[range(len(rows)), list(result.token_ids)].tolist()


@pytest.mark.parametrize("generic", [False, True])
async def test_greedy_equals_hf_generate(model: Path, generic: bool) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model)
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, VOCAB, n).tolist()) for n in (1, 7, 30, 60, 100, 33)]
    async with engine_of(model, chunk=16, generic=generic) as engine:
        results = await asyncio.gather(
            *(
                engine.generate(request(p, session=str(i), temperature=0, max_tokens=20))
                for i, p in enumerate(prompts)
            )
        )
    for prompt, result in zip(prompts, results, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            use_cache=False,
            pad_token_id=0,
        )
        assert result.token_ids == tuple(expected[0, len(prompt) :].tolist())
        assert result.finish == "length"
        assert result.logprobs == pytest.approx(hf_logprobs(model, prompt, result), abs=1e-4)


async def test_sampled_logprobs_are_the_models(model: Path) -> None:
    async with engine_of(model) as engine:
        result = await engine.generate(request(PROMPT, max_tokens=50, seed=3))
        assert result.logprobs == pytest.approx(hf_logprobs(model, PROMPT, result), abs=1e-4)


async def test_a_seed_decides_and_no_seed_varies(model: Path) -> None:
    async with engine_of(model) as engine:

        async def tokens(seed: int | None) -> tuple[int, ...]:
            return (await engine.generate(request(PROMPT, max_tokens=30, seed=seed))).token_ids

        assert await tokens(5) == await tokens(5)
        assert len({await tokens(None) for _ in range(4)}) > 1
        assert await tokens(-1) != await tokens(6)


async def test_first_tokens_follow_the_softmax(model: Path) -> None:
    n = 1200
    async with engine_of(model, slots=64) as engine:
        results = await asyncio.gather(
            *(engine.generate(request(PROMPT, max_tokens=1, seed=i)) for i in range(n))
        )
    p = hf_logits(model, PROMPT)[-1].double().softmax(-1).numpy()
    counts = np.bincount([r.token_ids[0] for r in results], minlength=VOCAB)
    often = p * n >= 5
    rest = (counts[~often].sum(), p[~often].sum() * n)
    chi2 = ((counts[often] - p[often] * n) ** 2 / (p[often] * n)).sum()
    chi2 += (rest[0] - rest[1]) ** 2 / rest[1]
    assert chi2 < often.sum() + 6 * np.sqrt(2 * often.sum())


async def test_stop_ends_with_the_stop_token(model: Path) -> None:
    async with engine_of(model) as engine:
        free = await engine.generate(request(PROMPT, temperature=0, max_tokens=20))
        stop = free.token_ids[5]
        result = await engine.generate(
            request(PROMPT, temperature=0, max_tokens=20, stop_ids=(stop,))
        )
        assert result.finish == "stop"
        assert result.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_the_context_ends_a_request(model: Path) -> None:
    async with engine_of(model, context=64) as engine:
        result = await engine.generate(request(PROMPT, max_tokens=1000))
        assert (len(result.token_ids), result.finish) == (64 - len(PROMPT), "length")
        with pytest.raises(ValueError, match="64 tokens; from 1 to 63"):
            await engine.generate(request(tuple(range(64))))


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": ()},
        {"prompt": (VOCAB,)},
        {"prompt": (-1,)},
        {"prompt": (1,), "temperature": -1.0},
        {"prompt": (1,), "temperature": float("nan")},
        {"prompt": (1,), "top_p": 0.0},
        {"prompt": (1,), "top_k": -1},
        {"prompt": (1,), "max_tokens": 0},
    ],
)
async def test_bad_requests_are_refused_and_harm_nobody(model: Path, bad: Any) -> None:
    async with engine_of(model) as engine:
        with pytest.raises(ValueError, match=r"prompt|sampling"):
            await engine.generate(request(**bad))
        assert (await engine.generate(request(PROMPT, max_tokens=2))).finish == "length"


@pytest.mark.parametrize("deterministic", [False, True])
async def test_reuse_gives_the_same_results(model: Path, deterministic: bool) -> None:
    def ask(ids: tuple[int, ...], session: str) -> Any:
        return request(ids, session=session, temperature=0, max_tokens=12)

    long = tuple(int(x) for x in np.random.default_rng(1).integers(0, VOCAB, 150))
    async with engine_of(model, deterministic=deterministic) as engine:
        first = await engine.generate(ask(long, "a"))
        grown = long + first.token_ids + (5, 6, 7)
        again = await engine.generate(ask(grown, "a"))
        other = await engine.generate(ask((*grown[:-1], 9), "b"))
        branch = await engine.generate(ask((*long[:100], 1, 2), "a"))
    assert again.cached_tokens == (128 if deterministic else len(long) + 11)
    assert other.cached_tokens == (128 if deterministic else len(grown) - 1)
    assert branch.cached_tokens == (64 if deterministic else 100)
    for ids, result in (
        (grown, again),
        ((*grown[:-1], 9), other),
        ((*long[:100], 1, 2), branch),
    ):
        async with engine_of(model, deterministic=deterministic) as fresh:
            expected = await fresh.generate(ask(ids, "x"))
        assert expected.cached_tokens == 0
        assert result.token_ids == expected.token_ids
        if deterministic:
            assert result.logprobs == expected.logprobs
        else:
            assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_a_group_computes_its_shared_prompt_once(model: Path) -> None:
    long = tuple(int(x) for x in np.random.default_rng(2).integers(0, VOCAB, 200))
    async with engine_of(model, slots=8, chunk=32) as engine:
        results = await asyncio.gather(
            *(
                engine.generate(request(long, session=str(i), max_tokens=40, seed=i))
                for i in range(8)
            )
        )
        status = await engine.status()
    assert status.prompt_tokens < len(long) + 8 * 2
    for result in results:
        assert result.logprobs == pytest.approx(hf_logprobs(model, long, result), abs=1e-4)


async def test_cancelling_frees_the_slot(model: Path) -> None:
    async with engine_of(model, slots=1) as engine:
        blocked = asyncio.create_task(engine.generate(request(PROMPT, max_tokens=200)))
        waiting = asyncio.create_task(engine.generate(request(PROMPT, max_tokens=200)))
        after = asyncio.create_task(engine.generate(request(PROMPT, max_tokens=3)))
        while (await engine.status()).running == 0:
            await asyncio.sleep(0.001)
        waiting.cancel()
        blocked.cancel()
        assert (await after).finish == "length"
        assert blocked.cancelled()
        assert waiting.cancelled()
        status = await engine.status()
        assert (status.running, status.waiting) == (0, 0)


async def test_closing_ends_requests_as_cancelled(model: Path) -> None:
    engine = EmbeddedEngine(model, slots=1, context=CONTEXT)
    tasks = [asyncio.create_task(engine.generate(request(PROMPT, max_tokens=200))) for _ in "ab"]
    while (await engine.status()).sampled_tokens < 5:
        await asyncio.sleep(0.001)
    await engine.close()
    results = [await t for t in tasks]
    assert [r.finish for r in results] == ["cancelled", "cancelled"]
    assert len(results[0].token_ids) >= 5
    for call in (engine.generate(request(PROMPT)), engine.status(), engine.load(as_policy(model))):
        with pytest.raises(EngineError, match="closed"):
            await call
    await engine.close()


@pytest.mark.parametrize("generic", [False, True])
async def test_weights_change_in_flight(model: Path, tmp_path: Path, generic: bool) -> None:
    eleven, twelve = (always(tmp_path / str(t), model, t) for t in (11, 12))
    async with engine_of(eleven, generic=generic, policy=as_policy(eleven, 1)) as engine:
        tasks = [
            asyncio.create_task(engine.generate(request(PROMPT, session=s, max_tokens=200)))
            for s in "abcdef"  # two of them wait for a slot
        ]
        while (await engine.status()).sampled_tokens < 20:
            await asyncio.sleep(0.001)
        pause = await engine.load(as_policy(twelve, 2))
        results = await asyncio.gather(*tasks)
        status = await engine.status()
    assert 0 <= pause < 0.5
    assert (status.version, status.digest) == (2, as_policy(twelve).digest)
    for result in results:
        assert len(result.token_ids) == 200
        assert {11: 1, 12: 2} | dict(zip(result.token_ids, result.versions, strict=True)) == {
            11: 1,
            12: 2,
        }
        assert list(result.versions) == sorted(result.versions)
    assert any(set(r.versions) == {1, 2} for r in results)


@pytest.mark.parametrize("damage", ["digest", "missing", "truncated", "tensor", "shape"])
async def test_unproven_weights_are_not_served(
    model: Path, other: Path, tmp_path: Path, damage: str
) -> None:
    from safetensors.torch import load_file, save_file

    good = as_policy(other, 7)
    file = tmp_path / "model.safetensors"
    raw = (other / "model.safetensors").read_bytes()
    tensors = load_file(other / "model.safetensors")
    if damage == "truncated":
        file.write_bytes(raw[:-8])
    elif damage == "tensor":
        save_file({n: t for n, t in tensors.items() if "o_proj" not in n}, file)
    elif damage == "shape":
        name = next(n for n in tensors if "o_proj" in n)
        save_file(tensors | {name: tensors[name][:-1].contiguous()}, file)
    elif damage == "digest":
        file.write_bytes(raw)
    digest = "0" * 64 if damage in ("digest", "missing") else as_policy(tmp_path).digest
    async with engine_of(model) as engine:
        before = await engine.generate(request(PROMPT, temperature=0, max_tokens=5))
        with pytest.raises(EngineError, match=r"digest|neither|cannot be read|lack|expected"):
            await engine.load(PolicyVersion(number=7, digest=digest, path=str(tmp_path), step=7))
        after = await engine.generate(request(PROMPT, temperature=0, max_tokens=5))
        assert (after.token_ids, after.versions) == (before.token_ids, (0,) * 5)
        await engine.load(good)
        assert (await engine.status()).version == 7


async def test_shards_load_and_a_missing_one_is_named(model: Path, tmp_path: Path) -> None:
    folder = split(tmp_path / "shards", model)
    async with engine_of(folder) as engine, engine_of(model) as whole:
        ask = request(PROMPT, temperature=0, max_tokens=5)
        assert (await engine.generate(ask)).token_ids == (await whole.generate(ask)).token_ids
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"model-00002-of-00002\.safetensors is missing"):
        EmbeddedEngine(folder, context=CONTEXT)


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"slots": 0}, "slots"), ({"context": CONTEXT + 1}, "context"), ({"dtype": "int8"}, "dtype")],
)
def test_impossible_settings_are_refused(model: Path, settings: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        EmbeddedEngine(model, **{"context": CONTEXT, **settings})


async def test_reuse_across_versions_can_be_switched_off(model: Path, other: Path) -> None:
    for reuse, expected in (("keep", len(PROMPT)), ("recompute", 0)):
        async with engine_of(model, reuse_across_versions=reuse) as engine:
            await engine.generate(request(PROMPT, max_tokens=1))
            await engine.load(as_policy(other, 1))
            grown = await engine.generate(request((*PROMPT, 1, 2), temperature=0, max_tokens=5))
            assert grown.cached_tokens == expected
            if reuse == "recompute":
                exact = hf_logprobs(other, (*PROMPT, 1, 2), grown)
                assert grown.logprobs == pytest.approx(exact, abs=1e-4)


async def test_non_finite_logits_fail_their_request_and_poison_nothing(
    model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight"].fill_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors")
    async with engine_of(model, slots=1) as engine:
        expected = await engine.generate(request(PROMPT, temperature=0, max_tokens=5))
        await engine.load(as_policy(tmp_path, 1))
        with pytest.raises(EngineError, match="not finite"):
            await engine.generate(request(tuple(range(60))))
        await engine.load(as_policy(model, 2))
        again = await engine.generate(request(PROMPT, temperature=0, max_tokens=5))
        assert again.token_ids == expected.token_ids


async def test_a_crash_of_the_loop_fails_everybody(model: Path) -> None:
    async with engine_of(model, slots=1) as engine:

        def broken(*_: object) -> Decoder:
            raise ZeroDivisionError("a bug")

        tasks = [
            asyncio.create_task(engine.generate(request(PROMPT, max_tokens=200))) for _ in "ab"
        ]
        while (await engine.status()).running == 0:
            await asyncio.sleep(0.001)
        engine._decoder.forward = broken  # type: ignore[assignment,method-assign]
        for task in tasks:
            with pytest.raises(EngineError, match="ZeroDivisionError: a bug"):
                await task
        with pytest.raises(EngineError, match="a bug"):
            await engine.generate(request(PROMPT))


async def test_bfloat16_weights_stay_close(tmp_path: Path) -> None:
    folder = make_model(tmp_path, initializer_range=0.1)
    async with engine_of(folder, dtype="bfloat16") as engine:
        result = await engine.generate(request(PROMPT, max_tokens=20, seed=1))
    assert result.logprobs == pytest.approx(hf_logprobs(folder, PROMPT, result), abs=0.2)
