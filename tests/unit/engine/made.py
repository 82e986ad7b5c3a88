"""Small models and requests for the engine's tests."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from insitu.kit.digest import digest_file
from insitu.types import PolicyVersion, Sampling, TokenRequest

VOCAB = 128
CONTEXT = 256


def make_model(folder: Path, family: str = "qwen3", seed: int = 0, **settings: object) -> Path:
    """A random two-layer decoder without a tokenizer, with logits that are far from uniform."""
    import transformers

    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.25,
        "dtype": "float32",
    }
    sizes.update(settings)
    config = transformers.AutoConfig.for_model(family, **sizes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # norms of a trained model are not all one
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


def as_policy(folder: Path, number: int = 0) -> PolicyVersion:
    digest = digest_file(folder / "model.safetensors")
    return PolicyVersion(number=number, digest=digest, path=str(folder), step=number)


def always(folder: Path, source: Path, token: int) -> Path:
    """A version of `source` that gives all its probability to `token`, whatever the prompt.

    All layers add nothing, all embeddings are equal, and the head knows one token.
    """
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" in name or name == "model.embed_tokens.weight":
            tensor.fill_(1.0)
        else:
            tensor.zero_()
    tensors["lm_head.weight"][token] = 10.0
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


def split(folder: Path, source: Path) -> Path:
    """The same weights in two shards with an index."""
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


def request(
    prompt: Iterable[int],
    *,
    session: str = "s",
    stop_ids: tuple[int, ...] = (),
    **sampling: object,
) -> TokenRequest:
    return TokenRequest(
        request_id="r",
        session=session,
        prompt_ids=tuple(prompt),
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        stop_ids=stop_ids,
    )
