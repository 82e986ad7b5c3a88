"""What a model folder's `config.json` says, as far as the embedded engine needs it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insitu.types import CorruptError

LEAN_FAMILIES = {"llama": False, "qwen2": False, "qwen3": True}
"""Model types the lean decoder knows; True where query and key heads are normalised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder of the Llama family (Llama, Qwen2, Qwen3)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    """Epsilon of the root-mean-square norms."""
    rope_theta: float
    head_norm: bool
    """Query and key heads are normalised before the rotation (Qwen3)."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`.

    Raises:
        CorruptError: it is missing or not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise CorruptError(f"{path}: {e}", remedy="give a Hugging Face model folder") from e
    if not isinstance(config, dict):
        raise CorruptError(f"{path}: not a JSON object", remedy="give a Hugging Face model folder")
    return config


def longest(config: dict[str, Any]) -> int | None:
    """`max_position_embeddings`, where the configuration names it."""
    value = config.get("max_position_embeddings")
    return int(value) if value else None


def _rope(config: dict[str, Any]) -> tuple[float, bool]:
    """Base of the rotation, and whether it is the plain one (no scaling, all dimensions)."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    plain = kind == "default" and float(rope.get("partial_rotary_factor", 1.0)) == 1.0
    return float(theta), plain


def lean_shape(config: dict[str, Any]) -> Shape | None:
    """The sizes where the lean decoder can run this model, else None.

    It declines what it does not compute: scaled rotations, sliding windows, biases in the
    feed-forward part, other activations and other families. Those run on the generic decoder.
    """
    family = config.get("model_type")
    theta, plain_rope = _rope(config)
    windows = any(kind != "full_attention" for kind in config.get("layer_types") or ())
    sliding = bool(config.get("use_sliding_window")) or windows
    if family not in LEAN_FAMILIES or not plain_rope or sliding:
        return None
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias"):
        return None
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        head_norm=LEAN_FAMILIES[family],
    )
