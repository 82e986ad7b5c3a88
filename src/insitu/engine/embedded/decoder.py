"""What the batcher needs of a decoder, and the choice between the two there are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from insitu.engine.embedded.attention import KVStore, Plan
from insitu.engine.embedded.shape import lean_shape, read_config

Loaded = Any
"""A decoder's own form of one version's weights."""


class Decoder(Protocol):
    """A decoder-only language model over packed rows."""

    vocab: int

    def prepare(self, tensors: Mapping[str, Tensor]) -> Loaded:
        """Convert a version's tensors into fresh buffers. May run in another thread.

        Raises:
            EngineError: a tensor is missing or has the wrong shape.
        """
        ...

    def use(self, loaded: Loaded) -> None:
        """Compute with these weights from now on; takes microseconds."""
        ...

    def forward(self, tokens: Tensor, plan: Plan, store: KVStore, wanted: Tensor | None) -> Tensor:
        """Logits [wanted rows, vocab] float32 of `tokens` [rows] int64.

        `wanted` [..] int64 picks rows; None means all, in order.
        """
        ...


def make_decoder(
    folder: Path, dtype: torch.dtype, device: torch.device, *, generic: bool = False
) -> Decoder:
    """The lean decoder where it knows the model, else the generic one."""
    config = read_config(folder)
    shape = None if generic else lean_shape(config)
    if shape is not None:
        from insitu.engine.embedded.lean import LeanDecoder

        return LeanDecoder(shape, dtype, device)
    from insitu.engine.embedded.generic import GenericDecoder

    return GenericDecoder(folder, dtype, device)
