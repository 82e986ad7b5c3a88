"""Both decoders against the Hugging Face model: rows packed, prompts in pieces, runs mixed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from insitu.engine.embedded.attention import BUCKET, KVStore, Lane, Piece, Plan, plan_runs
from insitu.engine.embedded.decoder import Decoder, make_decoder
from insitu.engine.embedded.generic import GenericDecoder
from insitu.engine.embedded.lean import LeanDecoder
from tests.unit.engine.made import CONTEXT, VOCAB, make_model

CPU = torch.device("cpu")
LEAN = {
    "qwen3": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True, "head_dim": 8},
}
GENERIC = {
    "gemma2": {"sliding_window": 24, "attn_logit_softcapping": 5.0},
    "mistral": {"sliding_window": 24},
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def decoder_of(folder: Path, *, generic: bool = False) -> Decoder:
    decoder = make_decoder(folder, torch.float32, CPU, generic=generic)
    decoder.use(decoder.prepare(load_file(folder / "model.safetensors")))
    return decoder


def plan(lanes: list[Lane], pieces: list[tuple[int, int, int]]) -> Plan:
    """A plan over lanes and pieces (slot, start, end)."""
    slots = [lane.slot for lane in lanes]
    positions = [lane.position for lane in lanes]
    made = []
    for slot, start, end in pieces:
        made.append(Piece(len(slots), slot, start, end))
        slots += [slot] * (end - start)
        positions += range(start, end)
    return Plan(
        torch.tensor(slots), torch.tensor(positions), plan_runs(lanes, CONTEXT), made, CONTEXT
    )


@torch.inference_mode()
def check_against_hf(folder: Path, decoder: Decoder) -> None:
    """Three sequences of different lengths, partly prefilled, partly decoded, mixed in steps."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = torch.randint(0, VOCAB, (3, 70), generator=torch.Generator().manual_seed(3))
    expected = reference(ids).logits
    store = KVStore(4, CONTEXT, torch.float32, CPU)

    def run(lanes: list[Lane], pieces: list[tuple[int, int, int]]) -> None:
        p = plan(lanes, pieces)
        tokens = ids[p.slots, p.positions]
        got = decoder.forward(tokens, p, store, None)
        torch.testing.assert_close(got, expected[p.slots, p.positions], atol=1e-5, rtol=1e-5)
        some = torch.tensor([len(tokens) - 1])
        torch.testing.assert_close(
            decoder.forward(tokens, p, store, some), got[some], atol=1e-5, rtol=1e-5
        )

    run([], [(0, 0, 40), (1, 0, 11)])
    run([Lane(0, 40)], [(1, 11, 30)])
    for step in range(5):
        run([Lane(0, 41 + step), Lane(1, 30 + step)], [(2, 9 * step, 9 * step + 9)])
    for step in range(20):
        run([Lane(0, 46 + step), Lane(1, 35 + step), Lane(2, 45 + step)], [])


@pytest.mark.parametrize("family", sorted(LEAN))
def test_lean_equals_hf(tmp_path: Path, family: str) -> None:
    settings = dict(LEAN[family])
    if family == "qwen2":
        settings.pop("head_dim")
    folder = make_model(tmp_path, family, **settings)
    decoder = decoder_of(folder)
    assert isinstance(decoder, LeanDecoder)
    check_against_hf(folder, decoder)


@pytest.mark.parametrize("family", sorted(GENERIC))
def test_generic_equals_hf(tmp_path: Path, family: str) -> None:
    folder = make_model(tmp_path, family, **GENERIC[family])
    decoder = decoder_of(folder)
    assert isinstance(decoder, GenericDecoder)
    check_against_hf(folder, decoder)


def test_both_decoders_agree(model: Path) -> None:
    check_against_hf(model, decoder_of(model, generic=True))
    check_against_hf(model, decoder_of(model))


@torch.inference_mode()
def test_shared_prefix_is_read_once_and_changes_nothing(model: Path) -> None:
    decoder = decoder_of(model)
    prefix = 2 * BUCKET
    g = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (3, 120), generator=g)
    ids[:, :prefix] = ids[0, :prefix]
    results = []
    for lineage in (-1, 7):
        store = KVStore(4, CONTEXT, torch.float32, CPU)
        p = plan([], [(0, 0, 100)])
        decoder.forward(ids[p.slots, p.positions], p, store, None)
        for slot in (1, 2):
            store.copy(0, slot, prefix)
            p = plan([], [(slot, prefix, 90 + slot)])
            decoder.forward(ids[p.slots, p.positions], p, store, None)
        lanes = [
            Lane(0, 100, lineage, prefix),
            Lane(1, 91, lineage, prefix),
            Lane(2, 92, lineage, prefix + 5),
        ]
        p = plan(lanes, [])
        assert [run.prefix for run in p.runs] == [prefix if lineage >= 0 else 0]
        results.append(decoder.forward(ids[p.slots, p.positions], p, store, None))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


def test_runs_split_where_padding_costs_more() -> None:
    lanes = [Lane(0, 10), Lane(1, 12), Lane(2, 900), Lane(5, 901), Lane(6, 900)]
    runs = plan_runs(lanes, 1024)
    assert [(r.row, r.slot, r.count) for r in runs] == [(0, 0, 2), (2, 2, 1), (3, 5, 2)]
    assert [r.length for r in runs] == [32, 901, 928]
