"""The packed pass against the stock Hugging Face model, documents apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, LlamaConfig

from insitu.train.kernels import BLOCK
from insitu.train.model import ModelShape, PackedModel, create, load_model, save
from insitu.train.packing import pack, split_evenly
from insitu.types import CorruptError, UsageError

TINY = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=64, vocabulary=96)


def documents(*lengths: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, 96, n), rng.random(n) < 0.6) for n in lengths]


def stock_loss(model, docs):
    """The sum of the targets' losses, each document in a forward pass of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for ids, mask in docs:
        mask = mask.copy()
        mask[0] = False
        tensor = torch.from_numpy(ids)
        logits = model(input_ids=tensor[None]).logits[0].double()
        at = torch.from_numpy(np.flatnonzero(mask))
        total = total + F.cross_entropy(logits[at - 1], tensor[at], reduction="sum")
    return total


def llama():
    return AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=48,
            tie_word_embeddings=False,
        )
    )


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_packed_equals_documents_apart(family):
    make = (lambda: create(TINY, seed=3)) if family == "qwen3" else llama
    torch.manual_seed(3)
    plain = make()
    ours = make()
    ours.load_state_dict(plain.state_dict())
    docs = documents(5, 1, BLOCK + 40, 2 * BLOCK, 33)
    expected = stock_loss(plain, docs)
    expected.backward()
    got, each = PackedModel(ours).loss(pack(docs))
    got.backward()
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    assert each.sum().item() == pytest.approx(expected.item(), rel=1e-5)
    reference = dict(plain.named_parameters())
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, reference[name].grad, rtol=1e-3, atol=1e-4, msg=name)


def test_every_stock_forward_is_replaced():
    model = PackedModel(create(TINY, seed=0)).model
    ours = [type(m).__name__ for m in model.modules() if "forward" in vars(m)]
    assert ours.count("Qwen3RMSNorm") == 2 * 4 + 1
    assert ours.count("Qwen3MLP") == 2


def test_one_documents_tokens_do_not_change_anothers_loss():
    model = PackedModel(create(TINY, seed=0))
    a, b, c = documents(20, 30, 25)
    other = documents(20, 30, 25, seed=9)[0]
    _, first = model.loss(pack([a, b, c]))
    _, second = model.loss(pack([(other[0], a[1]), b, c]))
    n = int(a[1][1:].sum())
    assert torch.equal(first[n:], second[n:])
    assert not torch.equal(first[:n], second[:n])


def test_a_first_token_is_never_a_target():
    packed = pack([(np.array([1, 2]), np.array([True, True])), (np.array([3]), np.array([True]))])
    assert packed.targets.tolist() == [1]
    assert packed.positions.tolist() == [0, 1, 0]


def test_runs_are_even_and_keep_order():
    assert split_evenly([3, 3, 3, 3], 6) == [[0, 1], [2, 3]]
    assert split_evenly([3, 3, 3, 3], 100, multiple=2) == [[0, 1], [2, 3]]
    assert split_evenly([5], 100, multiple=2) == [[0]]
    lengths = [int(n) for n in np.random.default_rng(0).integers(200, 900, 40)]
    runs = split_evenly(lengths, 4096, multiple=2)
    assert [i for r in runs for i in r] == list(range(40))
    sizes = [sum(lengths[i] for i in r) for r in runs]
    assert max(sizes) - min(sizes) < 900


def test_create_is_the_same_for_the_same_seed():
    one, two, other = (create(TINY, seed=s).state_dict() for s in (1, 1, 2))
    key = "model.embed_tokens.weight"
    assert torch.equal(one[key], two[key])
    assert not torch.equal(one[key], other[key])


def test_save_and_load_give_the_same_model_with_its_tokenizer(tmp_path: Path):
    side = tmp_path / "tok"
    side.mkdir()
    (side / "tokenizer.json").write_text("{}")
    model = create(TINY, seed=1)
    save(model, tmp_path / "m", side_files=side)
    again = load_model(tmp_path / "m")
    assert (tmp_path / "m/tokenizer.json").is_file()
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_folder_without_weights_gives_a_random_model(tmp_path: Path):
    save(create(TINY, seed=1), tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    load_model(tmp_path / "m", seed=4)


def test_no_folder_is_one_clear_line(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no model \(no config.json\)"):
        load_model(tmp_path / "absent")


def test_a_damaged_file_is_named(tmp_path: Path):
    save(create(TINY, seed=1), tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptError, match=r"model\.safetensors: damaged"):
        load_model(tmp_path / "m")


def test_a_missing_shard_is_named(tmp_path: Path):
    folder = tmp_path / "m"
    model = create(TINY, seed=1)
    save(model, folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    load_model(folder)
    shards[1].unlink()
    with pytest.raises(CorruptError, match=shards[1].name):
        load_model(folder)


def test_wrong_shapes_are_refused(tmp_path: Path):
    save(create(TINY, seed=1), tmp_path / "m")
    config = tmp_path / "m/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 128}))
    with pytest.raises(CorruptError, match="mlp"):
        load_model(tmp_path / "m")
