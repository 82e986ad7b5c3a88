"""The embedded engine's front: asyncio outside, one torch thread inside."""

import asyncio
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch

from insitu.engine.base import EngineStatus
from insitu.engine.embedded.attention import KVStore
from insitu.engine.embedded.batcher import Batcher, Job, Outcome
from insitu.engine.embedded.decoder import Decoder, Loaded, make_decoder
from insitu.engine.embedded.shape import longest, read_config
from insitu.engine.embedded.slots import Reuse, SlotTable
from insitu.engine.embedded.weights import digest_folder, read_proven
from insitu.kit.log import get_log
from insitu.types import (
    CorruptError,
    EngineError,
    PolicyVersion,
    TokenRequest,
    TokenResult,
    UsageError,
)

T = TypeVar("T")
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GRAIN = 64
"""Prompt tokens per piece in deterministic mode."""

_log = get_log("engine")


@dataclass(frozen=True, slots=True)
class _Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class _Cancel:
    job: Job


@dataclass(frozen=True, slots=True)
class _Swap:
    loaded: Loaded
    policy: PolicyVersion
    done: Callable[[float | EngineError], None]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class EmbeddedEngine:
    """Implements `Engine` with a model in this process.

    Example: `engine = EmbeddedEngine(Path("base"), slots=16, threads=1)`, then
    `await engine.generate(request)` from any task of one event loop.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        policy: PolicyVersion | None = None,
        slots: int = 64,
        context: int = 2048,
        dtype: Dtype = "auto",
        threads: int = 1,
        chunk: int = 256,
        deterministic: bool = False,
        reuse_across_versions: Reuse = "keep",
        device: str = "auto",
        generic: bool = False,
    ) -> None:
        """Read the model and start the torch thread.

        Args:
            model_dir: Hugging Face folder: `config.json` and safetensors.
            policy: the version to begin with (weights from its own `path`); None: number 0,
                from `model_dir`, its digest taken as it is.
            slots: sequences kept in memory at a time.
            context: longest sequence, prompt and sampled tokens together.
            dtype: of the weights; `auto` is float32 on a CPU and bfloat16 on a GPU.
            threads: of torch, for this engine's thread; 0: one per core.
            chunk: prompt tokens computed in one step while other requests decode.
            deterministic: compute each request alone, so that its tokens and log-probabilities
                are bitwise independent of what else runs.
            reuse_across_versions: whether a session's next call reuses keys and values that an
                older version computed; requests in flight always go on with theirs.
            device: `auto`, `cpu` or `cuda`.
            generic: use the Hugging Face model also where the lean decoder knows the family.

        Raises:
            UsageError: a setting or the model's configuration does not fit.
            CorruptError: a shard is missing, or the weights are not what `policy` says.
        """
        _check(model_dir, slots, context, chunk)
        self._context = context
        target = _device(device)
        kind = _dtype(dtype, target)
        first = policy or _as_it_is(model_dir)
        self._decoder: Decoder = make_decoder(model_dir, kind, target, generic=generic)
        try:
            self._decoder.use(self._prepare(first))
        except EngineError as e:
            raise CorruptError(str(e), remedy="give a complete model folder") from e
        table = SlotTable(
            slots, context, reuse=reuse_across_versions, grain=GRAIN if deterministic else 0
        )
        cached = kind if target.type == "cuda" else torch.float32
        store = KVStore(slots, context, cached, target)
        self._worker = _Worker(Batcher(self._decoder, store, table, first, chunk=chunk), threads)
        self._loading = asyncio.Lock()

    async def generate(self, request: TokenRequest) -> TokenResult:
        """See `Engine.generate`."""
        job_limit = self._admissible(request)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[TokenResult] = loop.create_future()

        def done(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, outcome)

        seed = request.sampling.seed
        job = Job(
            request=request,
            prompt=np.array(request.prompt_ids, dtype=np.int32),
            seed=(secrets.randbits(64) if seed is None else seed) % 2**64,
            done=done,
            limit=job_limit,
            submitted=time.monotonic(),
        )
        self._worker.send(_Submit(job))
        try:
            return await answer
        except asyncio.CancelledError:
            self._worker.send(_Cancel(job))
            raise

    async def load(self, policy: PolicyVersion) -> float:
        """See `Engine.load`."""
        async with self._loading:
            loaded = await asyncio.to_thread(self._prepare, policy)
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[float] = loop.create_future()

            def done(outcome: float | EngineError) -> None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_settle, answer, outcome)

            self._worker.send(_Swap(loaded, policy, done))
            return await answer

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        worker, batcher = self._worker, self._worker.batcher
        worker.check()
        return EngineStatus(
            version=batcher.policy.number,
            digest=batcher.policy.digest,
            running=len(batcher.running),
            waiting=len(batcher.waiting),
            prompt_tokens=batcher.prompt_tokens,
            sampled_tokens=batcher.sampled_tokens,
            busy_s=worker.busy_s,
            context=self._context,
        )

    async def close(self) -> None:
        """See `Engine.close`."""
        await asyncio.to_thread(self._worker.stop)

    def _prepare(self, policy: PolicyVersion) -> Loaded:
        with torch.inference_mode():
            return self._decoder.prepare(read_proven(policy))

    def _admissible(self, request: TokenRequest) -> int:
        """Tokens that may be sampled.

        Raises:
            ValueError: the request can never be served.
        """
        length, s = len(request.prompt_ids), request.sampling
        if not length or length >= self._context:
            raise ValueError(
                f"the prompt has {length} tokens; from 1 to {self._context - 1} leave room in a "
                f"context of {self._context}"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._decoder.vocab:
            raise ValueError(f"a prompt id is outside the vocabulary of {self._decoder.vocab}")
        if s.max_tokens < 1 or not s.temperature >= 0 or not 0 < s.top_p <= 1 or s.top_k < 0:
            raise ValueError(f"sampling parameters out of range: {s}")
        return min(s.max_tokens, self._context - length)


class _Worker:
    """The torch thread: takes messages between two steps, and steps while there is work."""

    def __init__(self, batcher: Batcher, threads: int) -> None:
        self.batcher = batcher
        self.busy_s = 0.0
        self._threads = threads or os.cpu_count() or 1
        self._inbox: queue.SimpleQueue[_Submit | _Cancel | _Swap | _Stop] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: str = ""
        self._thread = threading.Thread(target=self._run, name="insitu-engine", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises:
        EngineError: the thread has ended.
        """
        if self._ended:
            raise EngineError(self._ended)

    def send(self, message: _Submit | _Cancel | _Swap | _Stop) -> None:
        """Hand over a message.

        Raises:
            EngineError: the thread has ended, and nobody would read it.
        """
        with self._lock:
            if self._ended and isinstance(message, _Submit | _Swap):
                raise EngineError(self._ended)
            self._inbox.put(message)

    def stop(self) -> None:
        """End the thread; requests in flight end as cancelled."""
        self.send(_Stop())
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._take_messages():
                    begin = time.monotonic()
                    self.batcher.step()
                    self.busy_s += time.monotonic() - begin
            self._end("the engine is closed", lambda job: job.result("cancelled"))
        except Exception as e:  # noqa: BLE001 -- the thread's boundary: every caller is told
            _log.exception("the engine's loop failed")
            cause = f"the engine's loop failed: {type(e).__name__}: {e}"
            self._end(cause, lambda job: EngineError(cause))

    def _take_messages(self) -> bool:
        """Handle all messages there are, waiting for one while idle; False: stop."""
        while True:
            try:
                message = self._inbox.get(block=self.batcher.idle)
            except queue.Empty:
                return True
            if isinstance(message, _Stop):
                return False
            self._handle(message)

    def _handle(self, message: _Submit | _Cancel | _Swap) -> None:
        if isinstance(message, _Submit):
            self.batcher.waiting.append(message.job)
        elif isinstance(message, _Cancel):
            self.batcher.cancel(message.job)
        else:
            begin = time.monotonic()
            self.batcher.swap(message.loaded, message.policy)
            message.done(time.monotonic() - begin)

    def _end(self, cause: str, outcome: Callable[[Job], Outcome]) -> None:
        with self._lock:
            self._ended = cause
        self.batcher.end_all(outcome)
        with suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, _Submit):
                    message.job.done(outcome(message.job))
                elif isinstance(message, _Swap):
                    message.done(EngineError(cause))


def _settle(answer: asyncio.Future[T], outcome: T | EngineError) -> None:
    if answer.done():
        return
    if isinstance(outcome, EngineError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _as_it_is(folder: Path) -> PolicyVersion:
    """The folder's weights as version 0."""
    try:
        return PolicyVersion(number=0, digest=digest_folder(folder), path=str(folder), step=0)
    except EngineError as e:
        raise CorruptError(str(e), remedy="give a complete model folder") from e


def _dtype(name: Dtype, device: torch.device) -> torch.dtype:
    """`auto` is what the trainer's `auto` is: bfloat16 where the device multiplies it.

    There the trainer's own rounding sets how far the two's log-probabilities lie apart (k3 of
    2.8e-4 with a float32 engine, 2.7e-4 with this); elsewhere float32 is faster and exact.
    """
    if name == "auto":
        fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name}", remedy=f"use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(name: str) -> torch.device:
    """The device of that name, or the best one for `auto`.

    Raises:
        UsageError: torch does not know it, or it is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as e:
        raise UsageError(
            f"engine.device: {name!r} cannot be used here: {str(e).splitlines()[0]}",
            remedy="use cpu or auto; `insitu doctor` lists the devices",
        ) from e
    return torch.device(name)


def _check(model_dir: Path, slots: int, context: int, chunk: int) -> None:
    for name, value in (("slots", slots), ("chunk", chunk)):
        if value < 1:
            raise UsageError(f"{name} is {value}", remedy="give at least 1")
    limit = longest(read_config(model_dir))
    if context < 2 or (limit is not None and context > limit):
        raise UsageError(
            f"policy.context: {context} is out of range for {model_dir}",
            remedy=f"give from 2 to {limit or 'what the model was made for'}",
        )
