"""Keys and values in slots, and attention over them, for a batch of packed rows.

A *slot* holds the keys and values of one sequence. A step's batch is a list of token rows:
first one row per decoding sequence, then the rows of prompt pieces. Linear layers see all rows
at once; attention follows a `Plan`:

- *runs*: decoding rows whose slots are neighbours and whose lengths are similar share one
  batched product over a view of the cache, without copying it;
- *pieces*: consecutive prompt positions of one slot.

Decoding rows that begin with the same computed prefix can read it once for all of them
(`Run.prefix`), which turns most of the memory traffic of long shared prompts into one matrix
product (as in Hydragen, arXiv:2402.05099, with one softmax over both parts).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

RUN_OVERHEAD = 400
"""Padded positions that cost about as much as starting another run (measured)."""
BUCKET = 32
"""Lengths of runs are rounded up to this, so that runs change seldom."""


@dataclass(frozen=True, slots=True)
class Run:
    """Decoding rows `[row, row + count)` in slots `[slot, slot + count)`."""

    row: int
    slot: int
    count: int
    length: int
    """Positions attended to, padding included."""
    prefix: int = 0
    """Leading positions that all rows share; read from the run's first slot only."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Prompt rows `[row, row + end - start)`: positions `[start, end)` of `slot`."""

    row: int
    slot: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One decoding sequence: its slot, its new token's position, and its shared prefix."""

    slot: int
    position: int
    lineage: int = -1
    """Lanes of one lineage have bitwise equal keys and values up to `shared`; -1: none."""
    shared: int = 0


def plan_runs(lanes: Sequence[Lane], limit: int) -> list[Run]:
    """Runs over lanes sorted by slot, none longer than `limit` positions.

    A lane joins the run before it unless padding it (or the others) costs more than a new run.
    """
    runs: list[Run] = []
    begin = longest = 0
    for i, lane in enumerate(lanes):
        if i > begin and not _joins(lanes[i - 1], lane, longest, i - begin):
            runs.append(_run(lanes, begin, i, limit))
            begin, longest = i, 0
        longest = max(longest, lane.position)
    if lanes:
        runs.append(_run(lanes, begin, len(lanes), limit))
    return runs


def _joins(before: Lane, lane: Lane, longest: int, count: int) -> bool:
    """Whether `lane` joins the run of `count` lanes that ends with `before`."""
    if lane.slot != before.slot + 1 or lane.lineage != before.lineage:
        return False
    behind = longest - lane.position
    return (behind if behind >= 0 else -behind * count) <= RUN_OVERHEAD


def _run(lanes: Sequence[Lane], begin: int, end: int, limit: int) -> Run:
    members = lanes[begin:end]
    longest = max(lane.position for lane in members) + 1
    alone = len(members) == 1
    length = longest if alone else min(limit, math.ceil(longest / BUCKET) * BUCKET)
    same = not alone and len({lane.lineage for lane in members}) == 1 and members[0].lineage >= 0
    prefix = min(lane.shared for lane in members) if same else 0
    return Run(
        row=begin,
        slot=members[0].slot,
        count=len(members),
        length=length,
        prefix=prefix if prefix >= BUCKET else 0,
    )


@dataclass(slots=True)
class Plan:
    """What attention does with one step's rows."""

    slots: Tensor
    """[rows] int64: the slot of each row."""
    positions: Tensor
    """[rows] int64: the position of each row."""
    runs: list[Run]
    pieces: list[Piece]
    context: int
    _targets: dict[int, Tensor] = field(default_factory=dict)
    _masks: dict[tuple[int, int, int, int], Tensor] = field(default_factory=dict)

    def targets(self, kv_heads: int) -> Tensor:
        """[rows * kv_heads] int64: where each row's keys go in a [.., head_dim] view."""
        found = self._targets.get(kv_heads)
        if found is None:
            heads = torch.arange(kv_heads, device=self.slots.device)
            base = (self.slots[:, None] * kv_heads + heads) * self.context
            found = self._targets[kv_heads] = (base + self.positions[:, None]).flatten()
        return found

    def run_mask(
        self, run: Run, prefix: int, kv_heads: int, window: int, dtype: torch.dtype
    ) -> Tensor | None:
        """[count * kv_heads, 1, length - prefix] additive, or None where nothing is hidden."""
        if run.count == 1 and not window:
            return None
        key = (run.row, prefix, kv_heads, window)
        found = self._masks.get(key)
        if found is None:
            rows = self.positions[run.row : run.row + run.count]
            rows = rows.repeat_interleave(kv_heads)[:, None, None]
            found = self._masks[key] = _mask(rows, prefix, run.length, window, dtype)
        return found

    def piece_mask(self, piece: Piece, window: int, dtype: torch.dtype) -> Tensor:
        """[1, 1, end - start, end] additive."""
        key = (piece.row, 0, -1, window)
        found = self._masks.get(key)
        if found is None:
            rows = torch.arange(piece.start, piece.end, device=self.positions.device)
            mask = _mask(rows[:, None], 0, piece.end, window, dtype)
            found = self._masks[key] = mask[None, None]
        return found


def _mask(rows: Tensor, start: int, end: int, window: int, dtype: torch.dtype) -> Tensor:
    """0 where a row at position p sees a key at j (p - window < j <= p), -inf elsewhere."""
    columns = torch.arange(start, end, device=rows.device)
    hidden = columns > rows
    if window:
        hidden |= columns <= rows - window
    return torch.where(hidden, -math.inf, 0.0).to(dtype)


class KVStore:
    """Keys and values of all layers in `slots` slots of `context` positions.

    Each layer's tensors are [slots * kv_heads, context, head_dim], allocated when the layer is
    first written. Zeros cost no memory until a position is written (the system maps the pages
    lazily), and keep masked positions finite.
    """

    def __init__(self, slots: int, context: int, dtype: torch.dtype, device: torch.device) -> None:
        self.slots = slots
        self.context = context
        self.dtype = dtype
        self.device = device
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def _layer(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found = self._layers.get(index)
        if found is None:
            found = (self._empty(k), self._empty(v))
            self._layers[index] = found
        return found

    def _empty(self, like: Tensor) -> Tensor:
        rows = self.slots * like.shape[1]
        return torch.zeros(
            (rows, self.context, like.shape[2]), dtype=self.dtype, device=self.device
        )

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        for pair in self._layers.values():
            for tensor in pair:
                heads = tensor.shape[0] // self.slots
                rows = tensor[source * heads : (source + 1) * heads, :length]
                tensor[target * heads : (target + 1) * heads, :length] = rows

    def clear(self, slot: int) -> None:
        """Zero a slot whose contents are not finite, so that it cannot poison a later user."""
        for pair in self._layers.values():
            for tensor in pair:
                heads = tensor.shape[0] // self.slots
                tensor[slot * heads : (slot + 1) * heads] = 0

    def attend(
        self,
        layer: int,
        plan: Plan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """Store the rows' keys and values, then attend.

        Args:
            q: [rows, heads, head_dim], already multiplied by the softmax scale.
            k: [rows, kv_heads, head_dim]; v: [rows, kv_heads, value_dim].
            window: a key is seen only by the `window` positions from its own on; 0: by all.
            softcap: scores become `softcap * tanh(scores / softcap)`; 0: unchanged.

        Returns:
            [rows, heads * value_dim] in q's dtype.
        """
        wide = q.dtype
        if wide != self.dtype:
            q, k, v = q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)
        keys, values = self._layer(layer, k, v)
        kv_heads, width = k.shape[1], v.shape[2]
        where = plan.targets(kv_heads)
        keys.view(-1, k.shape[2]).index_copy_(0, where, k.reshape(-1, k.shape[2]))
        values.view(-1, width).index_copy_(0, where, v.reshape(-1, width))
        parts = [
            self._run(plan, run, q, keys, values, kv_heads, window, softcap) for run in plan.runs
        ]
        parts += [
            self._piece(plan, piece, q, keys, values, kv_heads, window, softcap)
            for piece in plan.pieces
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(wide)

    def _run(
        self,
        plan: Plan,
        run: Run,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        kv_heads: int,
        window: int,
        softcap: float,
    ) -> Tensor:
        # A window or a cap is not computed over the shared part: such layers read their own.
        prefix = 0 if window or softcap else run.prefix
        first, last = run.slot * kv_heads, (run.slot + run.count) * kv_heads
        k = keys[first:last, prefix : run.length].transpose(1, 2)
        v = values[first:last, prefix : run.length]
        rows = q[run.row : run.row + run.count].reshape(last - first, -1, q.shape[2])
        mask = plan.run_mask(run, prefix, kv_heads, window, q.dtype)
        if prefix:
            out = _with_prefix(run, rows, k, v, mask, keys[first:], values[first:], kv_heads)
        else:
            out = torch.bmm(_scores(rows, k, mask, softcap).softmax(-1), v)
        return out.view(run.count, -1)

    def _piece(
        self,
        plan: Plan,
        piece: Piece,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        kv_heads: int,
        window: int,
        softcap: float,
    ) -> Tensor:
        first, count = piece.slot * kv_heads, piece.end - piece.start
        k = keys[first : first + kv_heads, : piece.end]
        v = values[first : first + kv_heads, : piece.end]
        rows = q[piece.row : piece.row + count]
        grouped = rows.view(count, kv_heads, -1, q.shape[2]).permute(1, 2, 0, 3)
        scores = torch.bmm(grouped.reshape(kv_heads, -1, q.shape[2]), k.transpose(1, 2))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        by_head = scores.view(kv_heads, -1, count, piece.end)
        by_head += plan.piece_mask(piece, window, q.dtype)
        out = torch.bmm(scores.softmax(-1), v)
        return out.view(kv_heads, -1, count, v.shape[2]).permute(2, 0, 1, 3).reshape(count, -1)


def _scores(rows: Tensor, k: Tensor, mask: Tensor | None, softcap: float) -> Tensor:
    """[groups, heads per group, length] from rows [groups, .., head_dim], k [groups, head_dim, ..]."""
    if softcap:
        scores = softcap * torch.tanh(torch.bmm(rows, k) / softcap)
        return scores if mask is None else scores + mask
    return torch.bmm(rows, k) if mask is None else torch.baddbmm(mask, rows, k)


def _with_prefix(
    run: Run,
    rows: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    kv_heads: int,
) -> Tensor:
    """Attention where the first `run.prefix` positions are read once, from the first slot.

    One softmax over the shared and the own part; [count * kv_heads, group, value_dim].
    """
    n, prefix, own = run.count, run.prefix, run.length - run.prefix
    group, width = rows.shape[1], rows.shape[2]
    shared_k = keys[:kv_heads, :prefix].transpose(1, 2)
    shared_v = values[:kv_heads, :prefix]
    together = rows.view(n, kv_heads, group, width).transpose(0, 1)
    together = together.reshape(kv_heads, n * group, width)
    scores = rows.new_empty(n, kv_heads, group, prefix + own)
    shared = torch.bmm(together, shared_k).view(kv_heads, n, group, prefix)
    scores[..., :prefix] = shared.transpose(0, 1)
    scores[..., prefix:] = _scores(rows, k, mask, 0.0).view(n, kv_heads, group, own)
    p = scores.softmax(-1)
    own_out = torch.bmm(p[..., prefix:].reshape(n * kv_heads, group, own), v)
    p_shared = p[..., :prefix].transpose(0, 1).reshape(kv_heads, n * group, prefix)
    shared_out = torch.bmm(p_shared, shared_v).view(kv_heads, n, group, -1).transpose(0, 1)
    return own_out + shared_out.reshape(n * kv_heads, group, -1)
