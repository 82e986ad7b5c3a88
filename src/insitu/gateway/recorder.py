"""What a session leaves behind: calls as exact tokens, and a recording of the whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from insitu.types import Call, Fault, Segment, TokenResult

NOTHING_SAMPLED = TokenResult(token_ids=(), logprobs=(), versions=(), finish="cancelled")
"""The result of a call that ended before the engine answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Everything that one session's key was used for.

    Example: `Recording(episode_id="ep-1", calls=(call,), segments=(segment,), stop="")`.
    """

    episode_id: str
    calls: tuple[Call, ...]
    """In order of arrival; cancelled ones have a result without tokens."""
    segments: tuple[Segment, ...]
    stop: str
    """Why the last request was refused: `turn_limit`, `context_limit`, `engine_fault`; empty
    if it was answered."""
    faults: tuple[Fault, ...] = ()
    """Faults of the system that were met, also those that a retry overcame."""
    replays: int = 0
    """Repeated requests answered from the record."""
    overridden: dict[str, int] = field(default_factory=dict)
    """Sampling settings the product sent that were not used → in how many calls."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Fields of requests that had no effect → in how many calls."""

    @property
    def breaks(self) -> dict[str, int]:
        """Cause → how many calls began a new segment because of it."""
        causes = [c.break_cause for c in self.calls if c.break_cause]
        return {cause: causes.count(cause) for cause in dict.fromkeys(causes)}


def in_order(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Calls in order of arrival with their indices closed up (refused calls leave gaps)."""
    ordered = sorted(calls, key=lambda c: c.index)
    return tuple(c if c.index == i else replace(c, index=i) for i, c in enumerate(ordered))


def cut_at_stop(
    result: TokenResult, stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> TokenResult:
    """The result up to and with the token that completes the first of the texts `stops`.

    Sampling is left to right, so this is exactly what an engine that stops there had returned.
    """
    if not stops or not _found(decode(result.token_ids), stops):
        return result
    low, high = 1, len(result.token_ids)
    while low < high:
        middle = (low + high) // 2
        if _found(decode(result.token_ids[:middle]), stops):
            high = middle
        else:
            low = middle + 1
    return replace(
        result,
        token_ids=result.token_ids[:low],
        logprobs=result.logprobs[:low],
        versions=result.versions[:low],
        finish="stop",
    )


def before_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of the texts `stops`."""
    return text[: min([at for s in stops if (at := text.find(s)) >= 0], default=len(text))]


def _found(text: str, stops: Sequence[str]) -> bool:
    return any(s in text for s in stops)
