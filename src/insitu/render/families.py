"""Which renderer belongs to which model."""

import json
from pathlib import Path
from typing import Any, Final

from insitu.render.tokenizer import FastTokenizer
from insitu.types import UsageError

FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    # `enable_thinking` means "no closed think block in the generation prompt": the policy
    # decides itself, and one that never thinks gets `<|im_start|>assistant\n` alone.
    # Retention "all" bridges across user turns too, so that the prefix stays what was sampled.
    "qwen3": ("qwen3", {"enable_thinking": True, "thinking_retention": "all"}),
    "qwen3_moe": ("qwen3", {"enable_thinking": True, "thinking_retention": "all"}),
}
"""`model_type` of a model's config → name of a renderer in `renderers`, its settings."""

QWEN3_TOKENS: Final = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""A tokenizer with all of these is rendered as Qwen3, whatever the model's architecture."""


def open_renderer(folder: Path) -> tuple[Any, Any]:
    """The `renderers` renderer for the model in `folder`, and its tokenizer.

    The model's `model_type` decides, then the tokenizer's tokens; a model of another family
    is rendered by its own chat template, without bridging.

    Raises:
        UsageError: no tokenizer, or neither a known family nor a chat template.
    """
    from renderers.base import create_renderer, load_tokenizer
    from renderers.configs import DefaultRendererConfig, _config_class_for

    model_type, tokenizer = _model_type(folder), FastTokenizer(folder)
    complete = all(tokenizer.convert_tokens_to_ids(t) is not None for t in QWEN3_TOKENS)
    family = FAMILIES.get(model_type) or (FAMILIES["qwen3"] if complete else None)
    if family is not None:
        name, settings = family
        if name == "qwen3" and not complete:
            missing = [t for t in QWEN3_TOKENS if tokenizer.convert_tokens_to_ids(t) is None]
            raise UsageError(
                f"{folder}: the tokenizer lacks {', '.join(missing)}",
                remedy="use the tokenizer that belongs to the model",
            )
        return create_renderer(tokenizer, _config_class_for(name)(**settings)), tokenizer
    templated = load_tokenizer(str(folder))
    if not getattr(templated, "chat_template", None):
        raise UsageError(
            f"{folder}: model type {model_type or 'unknown'!r} has no renderer here and its "
            "tokenizer has no chat template",
            remedy="give the tokenizer Qwen3's special tokens or a chat template",
        )
    return create_renderer(templated, DefaultRendererConfig()), templated


def _model_type(folder: Path) -> str:
    path = folder / "config.json"
    return str(json.loads(path.read_text()).get("model_type", "")) if path.is_file() else ""
