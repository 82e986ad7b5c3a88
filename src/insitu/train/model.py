"""Models: made, loaded and saved as Hugging Face folders; the packed forward pass."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, Qwen3Config
from transformers.utils import logging as hf_logging

from insitu.kit.atomic import atomic_folder
from insitu.train.kernels import DocumentAttention, HeadCrossEntropy, HeadLogProbs, RMSNorm, SwiGLU
from insitu.train.packing import Packed
from insitu.types import CorruptError, UsageError

ATTENTION = "insitu_documents"
_SIDE_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "added_tokens.json",
               "chat_template*", "generation_config.json", "*.model")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The shape of a new Qwen3 model; the defaults are the demo's (5.8 million parameters)."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    vocabulary: int = 4096
    context: int = 2048
    rope_theta: float = 10_000.0
    tied: bool = True


def create(shape: ModelShape, *, seed: int) -> nn.Module:
    """A new Qwen3 model with random float32 weights, the same for the same seed."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _from_config(config, seed)


def _from_config(config: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def load_model(folder: Path, *, seed: int = 0) -> nn.Module:
    """The decoder in a Hugging Face folder, float32; without weight files: random by `seed`.

    Raises:
        UsageError: no folder or no config.json.
        CorruptError: a shard is missing or damaged, or a tensor has another shape than the
            config says.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder}: no model (no config.json)", remedy="give a model's folder")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError) as e:
        raise CorruptError(
            f"{folder}/config.json cannot be used: {str(e).splitlines()[0].rstrip('.')}",
            remedy=_AGAIN,
        ) from e
    shards = check_shards(folder)
    if not shards:
        return _from_config(config, seed)
    try:
        with _quiet():
            model, notes = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # Reported below, by name, as an error.
            )
    except RuntimeError as e:
        raise CorruptError(f"{folder}: weights do not fit config.json: {e}", remedy=_AGAIN) from e
    for kind in ("missing", "mismatched", "unexpected"):
        if found := sorted(str(k) for k in notes.get(f"{kind}_keys", ())):
            raise CorruptError(f"{folder}: {kind} weights: {found[0]}", remedy=_AGAIN)
    loaded: nn.Module = model
    return loaded


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the library's bars and reports: what matters is raised."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


_AGAIN = "copy the model's folder again"


def check_shards(folder: Path) -> list[Path]:
    """The folder's safetensors files, each proven to open; none where there are no weights.

    Raises:
        CorruptError: the index names a file that is missing, or a file is damaged.
    """
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    paths = [folder / name for name in names]
    for path in paths:
        if not path.is_file():
            raise CorruptError(f"{path}: missing shard of the model", remedy=_AGAIN)
        try:
            with safe_open(path, framework="pt") as f:
                f.keys()
        except (SafetensorError, OSError) as e:
            raise CorruptError(f"{path}: damaged weights: {e}", remedy=_AGAIN) from e
    return paths


def save(model: nn.Module, folder: Path, *, side_files: Path | None = None) -> None:
    """Write a Hugging Face folder, whole or not at all.

    `side_files` is a model folder whose tokenizer files are copied along.
    """
    with atomic_folder(folder) as temporary:
        with _quiet():
            model.save_pretrained(temporary)  # type: ignore[operator]
        if side_files is not None:
            copy_side_files(side_files, temporary)


def copy_side_files(source: Path, target: Path) -> None:
    """Copy the tokenizer's and template's files of a model folder; what is there stays."""
    for pattern in _SIDE_FILES:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and not (target / path.name).exists():
                shutil.copy2(path, target / path.name)


class PackedModel:
    """A decoder prepared for packed documents: our kernels in place of the stock ones.

    Hidden states of a row of documents come from one pass; attention never crosses a border.
    """

    def __init__(self, model: nn.Module) -> None:
        """Prepare `model` in place.

        Raises:
            UsageError: the architecture needs something the packed pass does not have
                (sliding windows shorter than the context, soft-capped logits).
        """
        _refuse_unsupported(model.config)
        model.set_attn_implementation(ATTENTION)  # type: ignore[operator]
        for module in model.modules():
            _replace_forward(module)
        self.model = model
        self.body: nn.Module = model.base_model  # type: ignore[assignment]
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self._wanted: Tensor | None = None
        self._shorten_last_layer()

    def hidden(self, packed: Packed, wanted: Tensor) -> Tensor:
        """The last hidden states at the positions `wanted`: `[wanted, width]`."""
        self._wanted = wanted if len(wanted) < _FEW * len(packed.ids) else None
        out = self.body(
            input_ids=torch.from_numpy(packed.ids)[None],
            position_ids=torch.from_numpy(packed.positions)[None],
            use_cache=False,
            doc_lengths=packed.lengths,
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden.index_select(0, wanted)

    def loss(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Sum of the targets' cross-entropies in nats, and each of them `[targets]`."""
        at = torch.from_numpy(packed.targets)
        hidden = self.hidden(packed, at - 1)
        targets = torch.from_numpy(packed.ids)[at]
        weights = torch.ones(len(targets))
        total, each = _apply(
            HeadCrossEntropy, hidden, self.head.weight, targets, weights, torch.is_grad_enabled()
        )
        return total, each

    def logprobs(self, packed: Packed, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the targets and entropies in nats, float32 `[targets]` each."""
        at = torch.from_numpy(packed.targets)
        targets = torch.from_numpy(packed.ids)[at]
        hidden = self.hidden(packed, at - 1)
        logprobs, entropies = _apply(HeadLogProbs, hidden, self.head.weight, targets, temperature)
        return logprobs, entropies

    def _shorten_last_layer(self) -> None:
        """Have the last layer's feed-forward part work only where a result is wanted.

        After it nothing mixes positions, so the others' results are never read.
        """
        layers = getattr(self.body, "layers", None)
        mlp = getattr(layers[-1], "mlp", None) if isinstance(layers, nn.ModuleList) else None
        if mlp is None or "forward" not in vars(mlp):
            return
        whole = mlp.forward

        def some(x: Tensor) -> Tensor:
            if self._wanted is None:
                return cast(Tensor, whole(x))
            out = whole(x.index_select(1, self._wanted))
            return torch.zeros_like(x).index_copy(1, self._wanted, out)

        mlp.forward = some


_FEW = 0.7
"""Share of positions below which picking them out costs less than it saves."""


def _apply(function: type[torch.autograd.Function], *values: Any) -> Any:
    """`function.apply(*values)`, which torch leaves untyped."""
    return function.apply(*values)  # type: ignore[no-untyped-call]


def _refuse_unsupported(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window and window < config.max_position_embeddings and _uses_windows(config):
        raise UsageError("sliding-window attention is not supported", remedy="use another model")
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "logits_scaling"):
        if getattr(config, key, None) not in (None, 1.0):
            raise UsageError(f"models with {key} are not supported", remedy="use another model")


def _uses_windows(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    return kinds is None or any("sliding" in kind for kind in kinds)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    q, k, v = query[0], key[0], value[0]
    out, start = [], 0
    for n in options.get("doc_lengths") or (q.shape[1],):
        rows = slice(start, start + n)
        out.append(_apply(DocumentAttention, q[:, rows], k[:, rows], v[:, rows], scale))
        start += n
    return torch.cat(out, dim=1).transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, _attend)


def _replace_forward(module: nn.Module) -> None:
    """Give RMSNorm and SwiGLU modules our kernels, where they compute the same thing."""
    kind = type(module).__name__
    if kind.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        _swap(module, lambda x: _apply(RMSNorm, x, module.weight, module.variance_epsilon))
    elif kind.endswith("MLP") and {"gate_proj", "up_proj", "down_proj"} <= _children(module):
        gate, up, down = (getattr(module, f"{n}_proj") for n in ("gate", "up", "down"))
        _swap(module, lambda x: down(_apply(SwiGLU, gate(x), up(x))))


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _swap(module: nn.Module, forward: Any) -> None:
    weight = next(module.parameters())
    width = weight.shape[-1]
    probe = torch.linspace(-2, 2, 4 * width, dtype=weight.dtype).view(1, 4, width)
    with torch.no_grad():
        same = torch.allclose(module(probe).float(), forward(probe).float(), rtol=2e-2, atol=2e-2)
    if same:
        module.forward = forward
