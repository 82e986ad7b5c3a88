"""Token sets on disk, read in a shuffled order that is a pure function of seed and position.

A token set is a folder:

- `tokens.bin`: token ids end to end, little-endian uint16 or uint32;
- `mask.bin`: uint8, one per token: 1 = the loss counts this token as a target;
- `index.npy`: int64 `[documents, 2]`: offset and length of each document, in tokens;
- `meta.json`: at least `{"dtype": "uint16" | "uint32", "tokens": N, "documents": N}`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from insitu.train.packing import Document, Ids
from insitu.types import CorruptError, UsageError

_REMEDY = "make the token set again"


class TokenSet:
    """One token set, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Open it and check that its four files agree.

        Raises:
            UsageError: there is no token set at `folder`.
            CorruptError: a file is missing, cut short or does not agree with `meta.json`.
        """
        self.folder = folder
        if not (folder / "meta.json").is_file():
            raise UsageError(f"{folder}: no token set (no meta.json)", remedy="give its folder")
        try:
            meta = json.loads((folder / "meta.json").read_text())
            self._tokens = np.memmap(folder / "tokens.bin", dtype=f"<u{_width(meta)}", mode="r")
            self._mask = np.memmap(folder / "mask.bin", dtype=np.uint8, mode="r")
            self._index = np.load(folder / "index.npy")
        except (OSError, ValueError, KeyError) as e:
            raise CorruptError(f"{folder}: token set cannot be read: {e}", remedy=_REMEDY) from e
        self._check(int(meta["tokens"]))

    def _check(self, declared: int) -> None:
        size = len(self._tokens)
        ends = self._index.sum(axis=1) if self._index.ndim == 2 else np.array([size + 1])
        if size != declared or len(self._mask) != size:
            raise CorruptError(
                f"{self.folder}: tokens.bin or mask.bin is cut short", remedy=_REMEDY
            )
        if len(ends) == 0 or ends.max() > size or self._index.min() < 0:
            raise CorruptError(f"{self.folder}: index.npy points outside", remedy=_REMEDY)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def tokens(self) -> int:
        """Tokens in all documents."""
        return int(self._index[:, 1].sum())

    def document(self, i: int, context: int) -> list[Document]:
        """Document `i`, cut into pieces of at most `context` tokens.

        A piece of one token teaches nothing and is left out.
        """
        offset, length = (int(x) for x in self._index[i])
        pieces = []
        for start in range(offset, offset + length, context):
            stop = min(start + context, offset + length)
            if stop - start > 1:
                ids = self._tokens[start:stop].astype(np.int64)
                pieces.append((ids, self._mask[start:stop] == 1))
        return pieces


def _width(meta: dict[str, object]) -> int:
    widths = {"uint16": 2, "uint32": 4}
    return widths[str(meta["dtype"])]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSource:
    """A token set in a mixture.

    Example: `TokenSource(folder="sets/code", weight=0.7)`.
    """

    folder: str
    weight: float = 1.0
    """Share of the tokens, relative to the other sources' weights."""
    decay_weight: float | None = None
    """The weight during the learning rate's decay; None: the same."""
    name: str = ""
    """What results call a held-out set; empty: its folder's name."""


class Mixture:
    """Token sets mixed by tokens: the next document comes from the source furthest behind.

    The order is a pure function of the seed and `state()`; nothing is random between.
    """

    def __init__(self, sources: Sequence[TokenSource], *, seed: int, context: int) -> None:
        """Open the sets.

        Raises:
            UsageError: no source, a weight below 0 or none above; CorruptError: see `TokenSet`.
        """
        if not sources or min(s.weight for s in sources) < 0 or not any(s.weight for s in sources):
            raise UsageError("a mixture needs sources with weights above 0", remedy="add a source")
        self._sources = list(sources)
        self._sets = [TokenSet(Path(s.folder)) for s in sources]
        self._seed, self._context = seed, context
        self._cursors = [0] * len(sources)
        self._taken = [0.0] * len(sources)
        self._decaying = False
        self._orders: dict[tuple[int, int], Ids] = {}

    @property
    def epochs(self) -> list[float]:
        """How often each source has been read."""
        return [c / len(s) for c, s in zip(self._cursors, self._sets, strict=True)]

    def state(self) -> dict[str, list[float]]:
        """Where the reading stands."""
        return {
            "cursors": [float(c) for c in self._cursors],
            "taken": list(self._taken),
            "decaying": [float(self._decaying)],
        }

    def restore(self, state: dict[str, list[float]]) -> None:
        """Go on where `state` was taken; the sources must be the same.

        Raises:
            UsageError: it was taken with another number of sources.
        """
        if len(state["cursors"]) != len(self._sets):
            raise UsageError(
                f"the run began with {len(state['cursors'])} sources, not {len(self._sets)}",
                remedy="give another run.name, or the sources that it began with",
            )
        self._cursors = [int(c) for c in state["cursors"]]
        self._taken = list(state["taken"])
        self._decaying = bool(state["decaying"][0])

    def take(self, tokens: int, *, decaying: bool = False) -> list[Document]:
        """The next whole documents: the fewest whose pieces hold at least `tokens` tokens."""
        got: list[Document] = []
        count = 0
        weights = [_weight(s, decaying=decaying) for s in self._sources]
        if decaying != self._decaying:
            # The shares count anew, else a source that gains weight would first catch up.
            self._taken, self._decaying = [0.0] * len(weights), decaying
        while count < tokens:
            pieces = self._next(weights)
            got.extend(pieces)
            count += sum(len(ids) for ids, _ in pieces)
        return got

    def _next(self, weights: list[float]) -> list[Document]:
        # `taken` is counted in tokens per unit of weight, so the smallest is furthest behind.
        i = min((t, i) for i, t in enumerate(self._taken) if weights[i] > 0)[1]
        pieces = self._sets[i].document(self._at(i, self._cursors[i]), self._context)
        self._cursors[i] += 1
        self._taken[i] += max(1, sum(len(ids) for ids, _ in pieces)) / weights[i]
        return pieces

    def _at(self, source: int, cursor: int) -> int:
        epoch, at = divmod(cursor, len(self._sets[source]))
        key = (source, epoch)
        if key not in self._orders:
            rng = np.random.Generator(
                np.random.Philox(key=[self._seed, source * 1_000_003 + epoch])
            )
            self._orders = {k: v for k, v in self._orders.items() if k[0] != source}
            self._orders[key] = rng.permutation(len(self._sets[source]))
        return int(self._orders[key][at])


def _weight(source: TokenSource, *, decaying: bool) -> float:
    if decaying and source.decay_weight is not None:
        return source.decay_weight
    return source.weight


def held_out_documents(token_set: TokenSet, context: int, limit: int) -> Iterator[Document]:
    """The same random documents' pieces each time, up to `limit` tokens, at least one piece."""
    count = 0
    for i in np.random.Generator(np.random.Philox(key=[0, 0])).permutation(len(token_set)):
        for piece in token_set.document(int(i), context):
            if count and count + len(piece[0]) > limit:
                return
            count += len(piece[0])
            yield piece
