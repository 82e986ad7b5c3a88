"""An engine without a model: it plays back a plan, for demonstrations and for tests."""

import asyncio
import time
from collections.abc import Callable, Sequence

from insitu.engine.base import EngineStatus
from insitu.types import EngineError, FinishReason, PolicyVersion, TokenRequest, TokenResult

Plan = Callable[[str, str], str]
"""(session, text of the prompt) to the text of the reply."""


class ScriptedEngine:
    """Implements `Engine`: each reply is what `plan` says, tokenised once.

    Example: `ScriptedEngine(lambda session, prompt: "hello", encode, decode, stop_ids=(0,))`.
    Log-probabilities are 0.0, as if the reply were certain. There are no weights, so `load`
    proves nothing; it sets the version that later tokens are stamped with.
    """

    def __init__(
        self,
        plan: Plan,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        stop_ids: Sequence[int],
        context: int = 2048,
    ) -> None:
        """`stop_ids[0]`, if any, ends each reply that is not cut by its limit of tokens."""
        self._plan = plan
        self._encode = encode
        self._decode = decode
        self._stop_ids = tuple(stop_ids)
        self._context = context
        self._policy = PolicyVersion(number=0, digest="", path="", step=0)
        self._closed = False
        self._running = 0
        self._prompt_tokens = 0
        self._sampled_tokens = 0
        self._busy_s = 0.0

    async def generate(self, request: TokenRequest) -> TokenResult:
        """See `Engine.generate`."""
        self._check()
        length = len(request.prompt_ids)
        if not length or length >= self._context:
            raise ValueError(
                f"the prompt has {length} tokens; from 1 to {self._context - 1} leave room in a "
                f"context of {self._context}"
            )
        begin = time.monotonic()
        self._running += 1
        try:
            await asyncio.sleep(0)  # others may run, and the caller may cancel
            prompt = self._decode(request.prompt_ids)
            reply = self._encode(self._plan(request.session, prompt))
        finally:
            self._running -= 1
            self._busy_s += time.monotonic() - begin
        limit = min(request.sampling.max_tokens, self._context - length)
        ids, finish = _cut((*reply, *self._stop_ids[:1]), request.stop_ids, limit)
        self._prompt_tokens += length
        self._sampled_tokens += len(ids)
        return TokenResult(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            versions=(self._policy.number,) * len(ids),
            finish=finish,
        )

    async def load(self, policy: PolicyVersion) -> float:
        """See `Engine.load`."""
        self._check()
        self._policy = policy
        return 0.0

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        self._check()
        return EngineStatus(
            version=self._policy.number,
            digest=self._policy.digest,
            running=self._running,
            waiting=0,
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=self._sampled_tokens,
            busy_s=self._busy_s,
            context=self._context,
        )

    async def close(self) -> None:
        """See `Engine.close`."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


def _cut(
    ids: Sequence[int], stop_ids: Sequence[int], limit: int
) -> tuple[tuple[int, ...], FinishReason]:
    """What a sampler would have given: up to the first stop token, at most `limit` tokens."""
    for i, token in enumerate(ids[:limit]):
        if token in stop_ids:
            return tuple(ids[: i + 1]), "stop"
    return tuple(ids[:limit]), "length" if len(ids) >= limit else "stop"
