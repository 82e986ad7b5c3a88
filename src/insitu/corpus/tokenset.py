"""Token sets: the folders of token documents that the trainer reads.

- `tokens.bin`: token ids end to end, little-endian uint16, or uint32 for a larger vocabulary;
- `mask.bin`: uint8, one per token: 1 = the loss counts this token as a target;
- `index.npy`: int64 `[documents, 2]`: offset and length of each document, in tokens;
- `meta.json`: dtype, counts, and what the maker of the set says about it.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from insitu.kit.atomic import atomic_folder
from insitu.types import UsageError

_NARROW = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDocument:
    """One document as tokens; both tuples have one entry per token."""

    ids: tuple[int, ...]
    loss: tuple[bool, ...]
    """True where the token is a target."""


def write_token_set(
    documents: Iterable[TokenDocument],
    folder: Path,
    *,
    about: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    vocabulary: int = _NARROW,
) -> dict[str, Any]:
    """Write a token set, whole or not at all; an existing one is replaced.

    Args:
        documents: read once, and never all of them in memory.
        folder: where the set goes.
        about: what else `meta.json` is to say; a function is asked after the last document.
        vocabulary: ids are below it; over 65,536 they are written as uint32.

    Returns:
        What `meta.json` holds: `about` and the counts `tokens`, `documents`, `targets`.

    Raises:
        UsageError: no document, an id that does not fit, or a mask of another length.
    """
    dtype, width = ("uint16", "<u2") if vocabulary <= _NARROW else ("uint32", "<u4")
    lengths, targets = array("q"), 0
    with atomic_folder(folder) as temporary:
        tokens, mask = temporary / "tokens.bin", temporary / "mask.bin"
        with tokens.open("wb") as to_tokens, mask.open("wb") as to_mask:
            for document in documents:
                _check(document.ids, document.loss, vocabulary)
                to_tokens.write(np.array(document.ids, dtype=width).tobytes())
                to_mask.write(bytes(document.loss))
                lengths.append(len(document.ids))
                targets += sum(document.loss)
        if not lengths:
            raise UsageError(
                f"{folder}: no documents", remedy="check the sources of this token set"
            )
        ends = np.cumsum(lengths)
        index = np.stack([ends - np.array(lengths), np.array(lengths)], axis=1).astype("<i8")
        np.save(temporary / "index.npy", index)
        counts = {"tokens": int(ends[-1]), "documents": len(index), "targets": targets}
        said = about() if callable(about) else about
        meta = {**(said or {}), "dtype": dtype, **counts}
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return meta


def _check(ids: Sequence[int], loss: Sequence[bool], vocabulary: int) -> None:
    if len(ids) != len(loss):
        raise UsageError(f"{len(ids)} tokens but {len(loss)} mask entries")
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        raise UsageError(
            f"token id {max(ids)} is outside a vocabulary of {vocabulary:,}",
            remedy="use the tokenizer that belongs to the model",
        )
