"""Any Hugging Face decoder whose attention goes through transformers' attention interface.

The model's own modules run on one packed row of tokens; its attention is replaced by a function
that keeps keys and values in slots (`KVStore`), so that the model needs no cache of its own.
"""

import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from insitu.engine.embedded.attention import KVStore, Plan
from insitu.types import CorruptError, EngineError, UsageError

NAME = "insitu_slots"
_REFUSED = ("s_aux", "sinks", "position_bias")
"""Arguments of attention variants that are not computed here."""


@dataclass(frozen=True, slots=True)
class _Step:
    plan: Plan
    store: KVStore


class _Current(threading.local):
    """The step that this thread's forward pass belongs to."""

    step: _Step | None = None


_current = _Current()


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, rows, head_dim] and so on."""
    step = _current.step
    refused = [name for name in _REFUSED if more.get(name) is not None]
    if step is None or refused:
        raise EngineError(f"attention outside a step, or with {refused}: not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    out = step.store.attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        step.plan,
        (q * scale).contiguous(),
        k,
        v,
        window=sliding_window or 0,
        softcap=softcap or 0.0,
    )
    return out.view(1, q.shape[0], q.shape[1], -1), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Masks come from the plan."""


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)


class GenericDecoder:
    """Implements `Decoder` with the Hugging Face model itself; slower per step, never narrower."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Raises:
        UsageError: the model's attention cannot be replaced.
        CorruptError: its configuration is none that transformers knows.
        """
        try:
            self.config = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (ValueError, KeyError, OSError) as e:
            raise CorruptError(
                f"{folder}/config.json cannot be used: {str(e).splitlines()[0].rstrip('.')}",
                remedy="use a model of a family that the installed transformers knows",
            ) from e
        self.dtype = dtype
        self.device = device
        text = self.config.get_text_config(decoder=True)
        self.vocab = int(text.vocab_size)
        with torch.device("meta"):
            kind = type(AutoModelForCausalLM.from_config(self.config))
        if not getattr(kind, "_supports_attention_backend", False):
            raise UsageError(
                f"{folder}: {kind.__name__} does not take another attention function",
                remedy="use a model that does, or another engine",
            )
        self._kind = kind
        self._keeps = "logits_to_keep" in inspect.signature(kind.forward).parameters
        self._model: Any = None

    def prepare(self, tensors: Mapping[str, Tensor]) -> Any:
        """See `Decoder.prepare`."""
        try:
            model, report = self._kind.from_pretrained(
                None,
                config=self.config,
                state_dict=dict(tensors),
                dtype=self.dtype,
                attn_implementation=NAME,
                output_loading_info=True,
            )
        except (RuntimeError, ValueError, KeyError) as e:
            raise EngineError(f"the weights do not fit {self._kind.__name__}: {e}") from e
        missing = sorted(report["missing_keys"])
        if missing or report["mismatched_keys"]:
            raise EngineError(f"the weights lack {missing[:3]} or differ in shape")
        return model.to(self.device).eval()

    def use(self, loaded: Any) -> None:
        """See `Decoder.use`."""
        self._model = loaded

    def forward(self, tokens: Tensor, plan: Plan, store: KVStore, wanted: Tensor | None) -> Tensor:
        """See `Decoder.forward`."""
        keep = {"logits_to_keep": wanted} if self._keeps and wanted is not None else {}
        _current.step = _Step(plan, store)
        try:
            out = self._model(
                input_ids=tokens[None], position_ids=plan.positions[None], use_cache=False, **keep
            )
        finally:
            _current.step = None
        logits: Tensor = out.logits[0]
        if wanted is not None and not keep:
            logits = logits[wanted]
        return logits.float()
