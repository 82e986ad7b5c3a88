"""From the gateway to an engine, patiently: a restart of the engine is only a slow answer."""

import asyncio
from collections.abc import Callable

from insitu.engine.base import Engine
from insitu.types import EngineError, InsituError, TokenRequest, TokenResult

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


class DoesNotFitError(InsituError):
    """The engine has no room for the prompt."""


class Relay:
    """Asks an engine again while it is away.

    `patience_s` is how long a call goes on asking after its first failure, `attempt_s` how
    long one attempt may take before the engine counts as stuck.
    """

    def __init__(self, engine: Engine, *, patience_s: float, attempt_s: float) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._attempt_s = attempt_s

    async def generate(self, request: TokenRequest, on_fault: Callable[[str], None]) -> TokenResult:
        """The engine's whole answer; each failed attempt is told to `on_fault`.

        Raises:
            EngineError: the engine stayed away for longer than `patience_s`.
            DoesNotFitError: the prompt leaves no room to sample.
        """
        loop = asyncio.get_running_loop()
        wait, give_up = _FIRST_WAIT_S, None
        while True:
            try:
                return await self._attempt(request)
            except EngineError as error:
                on_fault(str(error))
                give_up = give_up or loop.time() + self._patience_s
                if loop.time() + wait > give_up:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    async def _attempt(self, request: TokenRequest) -> TokenResult:
        try:
            async with asyncio.timeout(self._attempt_s):
                result = await self._engine.generate(request)
        except TimeoutError:
            raise EngineError(f"no answer within {self._attempt_s:g} s") from None
        except ValueError as error:
            raise DoesNotFitError(str(error)) from error
        if result.finish == "cancelled":
            raise EngineError("the engine ended the request")
        if not len(result.token_ids) == len(result.logprobs) == len(result.versions):
            raise EngineError("tokens, log-probabilities and versions differ in number")
        return result
