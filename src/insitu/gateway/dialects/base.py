"""A dialect: one public model API, translated to and from what the gateway understands.

    body ──read──► Ask ──(session, engine)──► Reply ──answer / stream──► body or events

A dialect knows nothing of sessions, tokens or engines, and the gateway knows nothing of wire
formats: whatever goes wrong is a `RequestError`, put into the dialect's own words by `error`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from insitu.render.turns import ParsedTurn
from insitu.types import InsituError

Cause = Literal[
    "bad_request",
    "bad_key",
    "turn_limit",
    "context_limit",
    "too_large",
    "engine_fault",
    "gateway_fault",
    "not_found",
    "closed",
]


class RequestError(InsituError):
    """A request that is answered with an error, in words that are safe to send.

    Example: `RequestError("bad_request", "messages is empty", param="messages")`.
    """

    def __init__(
        self, cause: Cause, message: str, *, param: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.param = param
        """The field of the request that is wrong, in the dialect's spelling."""
        self.retry_after_s = retry_after_s
        """Seconds after which a retry makes sense; 0: none does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A request in neutral form.

    Example: `Ask(model="m", messages=({"role": "user", "content": "hi"},))`.
    """

    model: str
    """As the product named it."""
    messages: tuple[dict[str, Any], ...]
    """Roles `system`, `user`, `assistant`, `tool`; `content` is text; an assistant's
    `tool_calls` are `{"id", "type": "function", "function": {"name", "arguments": text}}`."""
    tools: tuple[dict[str, Any], ...] = ()
    """`{"type": "function", "function": {…}}`, keys in the product's order."""
    stop: tuple[str, ...] = ()
    """Texts at which the turn ends; they are not part of it."""
    max_tokens: int | None = None
    sampling: dict[str, float] = field(default_factory=dict)
    """Sampling settings the product asked for: `temperature`, `top_p`, `top_k`, `seed`."""
    stream: bool = False
    stream_usage: bool = False
    calls_allowed: int | None = None
    """Tool calls that the answer may carry at most; 0 for none at all, None for any number."""
    ignored: tuple[str, ...] = ()
    """Fields that were accepted and have no effect here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A sampled turn on its way back to the product."""

    call_id: str
    model: str
    turn: ParsedTurn
    finish: Literal["stop", "length"]
    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int
    version: int
    """Policy version that sampled the last token."""
    created: int
    """Unix seconds."""


class Dialect(Protocol):
    """Translates one route of a public model API. Implementations hold no state."""

    name: str

    def key(self, headers: Mapping[str, str]) -> str:
        """The key that the request carries, or an empty text."""
        ...

    def read(self, body: bytes) -> Ask:
        """Understand a request's body.

        Raises:
            RequestError: it is not a request of this dialect, or asks for what cannot be given.
        """
        ...

    def answer(self, answer: Reply) -> bytes:
        """The body of the response."""
        ...

    def stream(self, answer: Reply, ask: Ask) -> Iterator[bytes]:
        """The answer as server-sent events."""
        ...

    def error(self, problem: RequestError) -> tuple[int, bytes]:
        """HTTP status and body for a problem."""
        ...

    def message(self, turn: ParsedTurn) -> dict[str, Any]:
        """The neutral message that a product which keeps its history would send back."""
        ...

    def answered(self, body: str) -> dict[str, Any]:
        """The neutral message in a response body that `answer` wrote."""
        ...
