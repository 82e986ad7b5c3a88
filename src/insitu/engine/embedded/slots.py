"""Which sequence each slot holds, and what of it a new request may reuse."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Reuse = Literal["keep", "recompute"]

MIN_GAIN = 32
"""Tokens by which a copied prefix must beat what the session's own slot has."""
WORTH_WAITING = 64
"""Tokens for which a request waits until another one has computed their shared prefix."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes: its slot, the positions that are already computed there, and the
    slot they are to be copied from first (-1: none)."""

    slot: int
    reused: int
    source: int = -1


class SlotTable:
    """Bookkeeping for `slots` slots of `context` positions; knows nothing of tensors.

    A slot keeps its tokens when its request ends. The next request of the same session goes on
    there; others may copy a prefix they share. Keys and values computed by an older version are
    reused by their own session only, and only with `reuse="keep"`; another session's are reused
    only if the current version computed them, so that no prefix outlives its version for ever.

    With `grain > 0` (deterministic mode) only whole grains of prompt positions computed by the
    current version are reused; they were computed in the same pieces as they would be now.
    """

    def __init__(self, slots: int, context: int, *, reuse: Reuse = "keep", grain: int = 0) -> None:
        self.reuse = reuse
        self.grain = grain
        self.tokens = np.full((slots, context), -1, dtype=np.int32)
        self.versions = np.full((slots, context), -1, dtype=np.int32)
        """Version that computed each position's keys and values."""
        self.known = np.zeros(slots, dtype=np.int64)
        """Tokens known of the sequence, computed or not."""
        self.ready = np.zeros(slots, dtype=np.int64)
        """Positions whose keys and values are in place."""
        self.prompt_ready = np.zeros(slots, dtype=np.int64)
        """Leading positions computed as parts of a prompt, in order."""
        self.lineage = np.full(slots, -1, dtype=np.int64)
        self.shared = np.zeros(slots, dtype=np.int64)
        """Leading positions whose contents are bitwise those of the slot's lineage."""
        self.busy = np.zeros(slots, dtype=bool)
        self.session: list[str | None] = [None] * slots
        self._used = np.zeros(slots, dtype=np.int64)
        self._clock = 0
        self._lineages = 0

    def place(self, prompt: npt.NDArray[np.int32], session: str, version: int) -> Place | None:
        """A slot for a request, or None where it has to wait.

        It waits while no slot is idle, and while another slot is computing a prefix that it
        could copy. At least the last prompt token is left to compute.
        """
        if self.busy.all():
            return None
        limit = len(prompt) - 1
        equal = _leading(self.tokens[:, :limit] == prompt[:limit], self.known)
        current = _leading(self.versions[:, :limit] == version, self.ready)
        others = np.minimum(equal, current)
        if self.grain:
            others = np.minimum(others, self.prompt_ready) // self.grain * self.grain
        best = int(others.argmax())
        if not self.grain and self._will_share(equal) - others[best] >= WORTH_WAITING:
            return None
        own = self._own(session)
        if own >= 0:
            kept = int(others[own])
            if self.reuse == "keep" and not self.grain:
                kept = int(min(equal[own], self.ready[own]))
            if others[best] < kept + MIN_GAIN:
                return Place(own, kept)
            return Place(own, int(others[best]), best)
        reused = int(others[best])
        target = self._oldest(spare=best if reused >= MIN_GAIN else -1)
        if target == best or reused < MIN_GAIN:
            return Place(target, int(others[target]))
        return Place(target, reused, best)

    def take(self, place: Place, prompt: npt.NDArray[np.int32], session: str) -> None:
        """Occupy `place`; a copy it asks for has been made (or is made before the next step)."""
        slot, n = place.slot, len(prompt)
        if place.source >= 0:
            self._share(place)
        self.shared[slot] = min(self.shared[slot], place.reused)
        if self.shared[slot] == 0:
            self.lineage[slot] = -1
        self.tokens[slot, :n] = prompt
        self.known[slot] = n
        self.ready[slot] = place.reused
        self.prompt_ready[slot] = min(self.prompt_ready[slot], place.reused)
        self.session[slot] = session
        self.busy[slot] = True

    def computed(self, slot: int, start: int, end: int, version: int) -> None:
        """Prompt positions `[start, end)` are in place."""
        self.versions[slot, start:end] = version
        self.ready[slot] = end
        self.prompt_ready[slot] = end

    def restart(self, slot: int) -> None:
        """Forget what is computed of a prompt, but not the prompt."""
        self.ready[slot] = self.prompt_ready[slot] = self.shared[slot] = 0
        self.lineage[slot] = -1

    def free(self, slot: int) -> None:
        """The slot's request ended; its contents stay for reuse."""
        self.busy[slot] = False
        self._clock += 1
        self._used[slot] = self._clock

    def forget(self, slot: int) -> None:
        """The slot's contents must not be reused."""
        self.restart(slot)
        self.known[slot] = 0
        self.session[slot] = None

    def _own(self, session: str) -> int:
        """The session's most recently used idle slot; -1: none."""
        mine = [i for i, s in enumerate(self.session) if s == session and not self.busy[i]]
        return max(mine, key=lambda i: int(self._used[i]), default=-1)

    def _oldest(self, spare: int) -> int:
        """The least recently used idle slot, not `spare` if there is another."""
        idle = np.flatnonzero(~self.busy)
        if len(idle) > 1:
            idle = idle[idle != spare]
        return int(idle[self._used[idle].argmin()])

    def _will_share(self, equal: npt.NDArray[np.int64]) -> int:
        """Longest prefix that a slot with an unfinished prompt has in common."""
        filling = self.busy & (self.ready < self.known - 1)
        return int(equal[filling].max(initial=0))

    def _share(self, place: Place) -> None:
        """Source and target begin with the same `place.reused` positions from now on."""
        source, target, n = place.source, place.slot, place.reused
        if self.lineage[source] < 0 or n >= 2 * self.shared[source]:
            self.lineage[source] = self._lineages
            self.shared[source] = n
            self._lineages += 1
        self.lineage[target] = self.lineage[source]
        self.shared[target] = min(n, self.shared[source])
        self.versions[target, :n] = self.versions[source, :n]
        self.prompt_ready[target] = min(n, self.prompt_ready[source])


def _leading(same: npt.NDArray[np.bool_], bound: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Leading True values in each row, at most `bound`."""
    if same.shape[1] == 0:
        return np.zeros(len(same), dtype=np.int64)
    first = np.where(same.all(1), same.shape[1], (~same).argmax(1))
    out: npt.NDArray[np.int64] = np.minimum(first, bound)
    return out
