"""What the engine's server and its client say to each other: JSON over HTTP."""

from dataclasses import dataclass

GENERATE = "/generate"
LOAD = "/load"
STATUS = "/status"
HEALTH = "/health"

REFUSED = 422
"""The request can never be served: `ValueError` at the client."""
FAILED = 503
"""The engine failed: `EngineError` at the client."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Body of every answer that is not a success."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Answer to a load."""

    pause_s: float
