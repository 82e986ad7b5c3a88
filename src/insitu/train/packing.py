"""Documents end to end in one row: no padding, no attention across borders, positions restart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Document = tuple[Ids, Mask]
"""Token ids and which of them are targets of the loss, `[tokens]` each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """Documents end to end. All arrays have one entry per token.

    Example: two documents of 3 and 2 tokens: `lengths=(3, 2)`, `positions=[0, 1, 2, 0, 1]`.
    """

    ids: Ids
    mask: Mask
    """True where the token is a target of the loss; never at a document's first token."""
    positions: Ids
    lengths: tuple[int, ...]

    @property
    def targets(self) -> Ids:
        """Indices of the tokens that are targets; each is predicted at the index before it."""
        return np.flatnonzero(self.mask)


def pack(documents: Sequence[Document]) -> Packed:
    """Join (ids, mask) pairs; each pair is one document of at least one token."""
    lengths = tuple(len(ids) for ids, _ in documents)
    mask = np.concatenate([m for _, m in documents]).astype(bool)
    firsts = np.cumsum((0, *lengths[:-1]))
    mask[firsts] = False
    return Packed(
        ids=np.concatenate([ids for ids, _ in documents]).astype(np.int64),
        mask=mask,
        positions=np.concatenate([np.arange(n, dtype=np.int64) for n in lengths]),
        lengths=lengths,
    )


def split_evenly(lengths: Sequence[int], limit: int, *, multiple: int = 1) -> list[list[int]]:
    """Indices of `lengths` in their order, cut into runs of about equal numbers of tokens.

    The number of runs is the smallest multiple of `multiple` at which a run is expected to hold
    at most `limit` tokens; fewer where there are fewer lengths.
    """
    total = sum(lengths)
    wanted = max(1, -(-total // (limit * multiple))) * multiple
    runs: list[list[int]] = [[] for _ in range(wanted)]
    before = 0
    for i, n in enumerate(lengths):
        middle = before + n / 2
        runs[min(wanted - 1, int(middle * wanted / total))].append(i)
        before += n
    return [r for r in runs if r]
