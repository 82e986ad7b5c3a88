"""The engine protocol: tokens in, tokens and log-probabilities out, weights changed in flight."""

from dataclasses import dataclass
from typing import Protocol

from insitu.types import PolicyVersion, TokenRequest, TokenResult


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStatus:
    """What an engine serves and has done since it started."""

    version: int
    digest: str
    running: int
    waiting: int
    prompt_tokens: int
    """Prompt tokens computed (reused ones not counted)."""
    sampled_tokens: int
    busy_s: float
    """Seconds with at least one request in flight."""
    context: int
    """Longest sequence, prompt and sampled tokens together."""


class Engine(Protocol):
    """Serves one policy version at a time."""

    async def generate(self, request: TokenRequest) -> TokenResult:
        """Sample a continuation. Cancelling the awaiting task cancels the generation.

        Raises:
            EngineError: the engine is dead or refused; the request may be sent again.
            ValueError: the prompt is empty or leaves no room in the context.
        """
        ...

    async def load(self, policy: PolicyVersion) -> float:
        """Serve `policy` from the next token on, also for requests in flight.

        The weights' digest is proven before anything is changed.

        Returns:
            Seconds during which no token could be sampled.

        Raises:
            EngineError: the weights could not be read or their digest differs;
                the engine goes on with the version it had.
        """
        ...

    async def status(self) -> EngineStatus:
        """What it serves now."""
        ...

    async def close(self) -> None:
        """Stop; requests in flight end as cancelled."""
        ...
