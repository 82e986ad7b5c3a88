"""The embedded engine on a GPU: the same code, so the same results as on the CPU."""

import asyncio
from pathlib import Path

import pytest
import torch

from insitu.engine.embedded.engine import EmbeddedEngine
from insitu.types import TokenResult
from tests.unit.engine.made import CONTEXT, as_policy, make_model, request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


async def results(folder: Path, device: str) -> list[TokenResult]:
    engine = EmbeddedEngine(folder, slots=4, context=CONTEXT, dtype="float32", device=device)
    try:
        await engine.load(as_policy(folder, 1))
        return await asyncio.gather(
            *(
                engine.generate(
                    request(range(3, 20 + 9 * i), session=str(i), temperature=0, max_tokens=30)
                )
                for i in range(6)
            )
        )
    finally:
        await engine.close()


async def test_gpu_equals_cpu(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    for here, there in zip(
        await results(folder, "cpu"), await results(folder, "cuda"), strict=True
    ):
        assert there.token_ids == here.token_ids
        assert there.logprobs == pytest.approx(here.logprobs, abs=1e-3)
