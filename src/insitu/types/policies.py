"""A policy version: which weights sampled, or will sample, a token."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    """One published version of the weights.

    Example: `PolicyVersion(number=7, digest="9f0c…", path="weights/v000007", step=7)`.
    """

    number: int
    """0 is the base policy; each optimiser step that publishes adds one."""
    digest: str
    """Hex BLAKE2b-256 of the weights as published; an engine proves it before it serves."""
    path: str
    """Folder with `model.safetensors`, `config.json` and the tokenizer's files."""
    step: int
    """The optimiser step after which it was published; 0 for the base policy."""
