"""Continuous batching: which rows the next step computes, and what becomes of its tokens.

The batcher is one thread's property. Nothing here waits, locks or knows of asyncio.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from insitu.engine.embedded.attention import KVStore, Lane, Piece, Plan, plan_runs
from insitu.engine.embedded.decoder import Decoder, Loaded
from insitu.engine.embedded.sampling import Draw, sample
from insitu.engine.embedded.slots import SlotTable
from insitu.types import EngineError, FinishReason, PolicyVersion, TokenRequest, TokenResult

LOOK_AHEAD = 16
"""Waiting requests looked at per step."""

Outcome = TokenResult | EngineError


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the engine."""

    request: TokenRequest
    prompt: npt.NDArray[np.int32]
    seed: int
    """Unsigned 64-bit."""
    done: Callable[[Outcome], None]
    """Called once, from the batcher's thread."""
    limit: int
    """Tokens to sample at most, by request and context."""
    submitted: float
    """Monotonic seconds, like the next two."""
    admitted: float = 0.0
    first_token: float = 0.0
    slot: int = -1
    computed: int = 0
    """Positions whose keys and values are in place."""
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def result(self, finish: FinishReason) -> TokenResult:
        """What was sampled so far."""
        now = time.monotonic()
        admitted = self.admitted or now
        first = self.first_token or now
        return TokenResult(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish=finish,
            cached_tokens=self.cached,
            queue_s=admitted - self.submitted,
            prefill_s=first - admitted if self.admitted else 0.0,
            decode_s=now - first,
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """One forward pass: decoding jobs by slot, then prompt pieces (job, start, end)."""

    decoding: list[Job]
    pieces: list[tuple[Job, int, int]]


class Batcher:
    """Runs jobs over a decoder; weights may change between two calls of `step`."""

    def __init__(
        self,
        decoder: Decoder,
        store: KVStore,
        table: SlotTable,
        policy: PolicyVersion,
        *,
        chunk: int,
    ) -> None:
        """`chunk`: prompt tokens computed per step while others decode; four times as many
        while none does. With a deterministic table a chunk is the table's grain."""
        self.decoder = decoder
        self.store = store
        self.table = table
        self.policy = policy
        self.chunk = chunk
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    @property
    def idle(self) -> bool:
        """Nothing to compute."""
        return not self.running and not self.waiting

    def cancel(self, job: Job) -> None:
        """Drop a job at once; its slot is free for the next step."""
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.running:
            self._release(job)

    def swap(self, loaded: Loaded, policy: PolicyVersion) -> None:
        """Compute with new weights from the next step on.

        Requests in flight keep the keys and values they have. In deterministic mode those
        without a token yet begin again, so that a result is never a mixture of unknown shares.
        """
        self.decoder.use(loaded)
        self.policy = policy
        if self.table.grain:
            for job in self.running:
                if not job.tokens:
                    self.table.restart(job.slot)
                    job.computed = job.cached = 0

    def end_all(self, outcome: Callable[[Job], Outcome]) -> None:
        """End every job with `outcome`."""
        jobs = [*self.running, *self.waiting]
        for job in self.running:
            self.table.free(job.slot)
        self.running.clear()
        self.waiting.clear()
        for job in jobs:
            job.done(outcome(job))

    def step(self) -> None:
        """Admit what fits, compute the next rows, and hand out what is finished."""
        self._admit()
        for batch in list(self._batches()):
            self._advance(batch)

    def _admit(self) -> None:
        for job in [self.waiting[i] for i in range(min(LOOK_AHEAD, len(self.waiting)))]:
            place = self.table.place(job.prompt, job.request.session, self.policy.number)
            if place is None:
                if self.table.busy.all():
                    return
                continue
            self.waiting.remove(job)
            self.table.take(place, job.prompt, job.request.session)
            if place.source >= 0:
                self.store.copy(place.source, place.slot, place.reused)
            job.slot, job.computed, job.cached = place.slot, place.reused, place.reused
            job.admitted = time.monotonic()
            self.running.append(job)

    def _batches(self) -> Iterator[_Batch]:
        if self.table.grain:
            # Alone, and in pieces whose borders depend on nothing but the prompt.
            for job in self.running:
                if job.tokens:
                    yield _Batch([job], [])
                else:
                    end = min(len(job.prompt), job.computed + self.table.grain)
                    yield _Batch([], [(job, job.computed, end)])
            return
        decoding = sorted((j for j in self.running if j.tokens), key=lambda j: j.slot)
        budget = self.chunk if decoding else 4 * self.chunk
        pieces = []
        for job in self.running:
            if not job.tokens and budget > 0:
                end = min(len(job.prompt), job.computed + budget)
                budget -= end - job.computed
                pieces.append((job, job.computed, end))
        if decoding or pieces:
            yield _Batch(decoding, pieces)

    def _advance(self, batch: _Batch) -> None:
        logits = self._forward(batch)
        version = self.policy.number
        decoded = np.fromiter((j.slot for j in batch.decoding), np.int64, len(batch.decoding))
        self.table.versions[decoded, self.table.ready[decoded]] = version
        self.table.ready[decoded] += 1
        for job, start, end in batch.pieces:
            self.table.computed(job.slot, start, end, version)
            job.computed = end
            self.prompt_tokens += end - start
        sampling = [*batch.decoding, *(j for j, _, end in batch.pieces if end == len(j.prompt))]
        if sampling:
            tokens, logprobs = sample(logits, _draw(sampling))
            self.sampled_tokens += len(tokens)
            for job, token, logprob in zip(sampling, tokens, logprobs, strict=True):
                self._take(job, token, logprob, version)

    def _forward(self, batch: _Batch) -> Tensor:
        """Logits of the rows to sample from."""
        n = len(batch.decoding)
        total = n + sum(end - start for _, start, end in batch.pieces)
        tokens = np.empty(total, dtype=np.int64)
        slots, positions = np.empty_like(tokens), np.empty_like(tokens)
        slots[:n] = [job.slot for job in batch.decoding]
        tokens[:n] = [job.tokens[-1] for job in batch.decoding]
        positions[:n] = self.table.ready[slots[:n]]
        pieces, wanted, row = [], list(range(n)), n
        for job, start, end in batch.pieces:
            stop = row + end - start
            tokens[row:stop] = job.prompt[start:end]
            slots[row:stop] = job.slot
            positions[row:stop] = np.arange(start, end)
            pieces.append(Piece(row, job.slot, start, end))
            if end == len(job.prompt):
                wanted.append(stop - 1)
            row = stop
        plan = Plan(
            slots=self._tensor(slots),
            positions=self._tensor(positions),
            runs=plan_runs(self._lanes(batch.decoding), self.store.context),
            pieces=pieces,
            context=self.store.context,
        )
        picked = None if len(wanted) == total else self._tensor(np.array(wanted, dtype=np.int64))
        return self.decoder.forward(self._tensor(tokens), plan, self.store, picked)

    def _lanes(self, jobs: list[Job]) -> list[Lane]:
        table = self.table
        return [
            Lane(
                j.slot,
                int(table.ready[j.slot]),
                int(table.lineage[j.slot]),
                int(table.shared[j.slot]),
            )
            for j in jobs
        ]

    def _tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.store.device)

    def _take(self, job: Job, token: int, logprob: float, version: int) -> None:
        if not math.isfinite(logprob):
            self._release(job)
            self.table.forget(job.slot)
            self.store.clear(job.slot)
            job.done(EngineError(f"version {version} gave logits that are not finite"))
            return
        if not job.tokens:
            job.first_token = time.monotonic()
        at = len(job.prompt) + len(job.tokens)
        self.table.tokens[job.slot, at] = token
        self.table.known[job.slot] = at + 1
        job.tokens.append(token)
        job.logprobs.append(logprob)
        job.versions.append(version)
        if token in job.request.stop_ids:
            self._finish(job, "stop")
        elif len(job.tokens) >= job.limit:
            self._finish(job, "length")

    def _finish(self, job: Job, finish: FinishReason) -> None:
        self._release(job)
        job.done(job.result(finish))

    def _release(self, job: Job) -> None:
        self.running.remove(job)
        self.table.free(job.slot)


def _draw(jobs: list[Job]) -> Draw:
    settings = [job.request.sampling for job in jobs]
    return Draw(
        temperature=np.array([s.temperature for s in settings], dtype=np.float32),
        top_p=np.array([s.top_p for s in settings], dtype=np.float32),
        top_k=np.array([s.top_k for s in settings], dtype=np.int64),
        seeds=np.array([job.seed for job in jobs], dtype=np.uint64),
        positions=np.array([len(j.prompt) + len(j.tokens) for j in jobs], dtype=np.int64),
    )
