"""Token sets: the folders of token documents that the trainer reads.

- `tokens.bin`: token ids end to end, little-endian uint16;
- `mask.bin`: uint8, one per token: 1 = the loss counts this token as a target;
- `index.npy`: int64 `[documents, 2]`: offset and length of each document, in tokens;
- `meta.json`: dtype, counts, and what the maker of the set says about it.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from insitu.kit.atomic import atomic_folder
from insitu.types import UsageError

_LIMIT = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDocument:
    """One document as tokens; both tuples have one entry per token."""

    ids: tuple[int, ...]
    loss: tuple[bool, ...]
    """True where the token is a target."""


def write_token_set(
    documents: Iterable[TokenDocument], folder: Path, *, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write a token set, whole or not at all; an existing one is replaced.

    Returns:
        What `meta.json` holds: `about` and the counts `tokens`, `documents`, `targets`.

    Raises:
        UsageError: no document, an id that does not fit, or a mask of another length.
    """
    tokens, mask, ends = array("H"), bytearray(), [0]
    for document in documents:
        _check(document.ids, document.loss)
        tokens.extend(document.ids)
        mask.extend(document.loss)
        ends.append(len(tokens))
    if len(ends) == 1:
        raise UsageError(f"{folder}: no documents", remedy="check the sources of this token set")
    index = np.stack([np.array(ends[:-1]), np.diff(ends)], axis=1).astype("<i8")
    counts = {"tokens": len(tokens), "documents": len(index), "targets": int(sum(mask))}
    meta = {**(about or {}), "dtype": "uint16", **counts}
    with atomic_folder(folder) as temporary:
        (temporary / "tokens.bin").write_bytes(np.array(tokens, dtype="<u2").tobytes())
        (temporary / "mask.bin").write_bytes(bytes(mask))
        np.save(temporary / "index.npy", index)
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return meta


def _check(ids: Sequence[int], loss: Sequence[bool]) -> None:
    if len(ids) != len(loss):
        raise UsageError(f"{len(ids)} tokens but {len(loss)} mask entries")
    if ids and (min(ids) < 0 or max(ids) >= _LIMIT):
        raise UsageError(f"token id {max(ids)} does not fit 16 bits")
