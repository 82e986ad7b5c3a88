"""What the engine's server and its client say to each other, by `insitu.kit.rpc`."""

from dataclasses import dataclass

GENERATE = "/generate"
LOAD = "/load"
STATUS = "/status"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Answer to a load."""

    pause_s: float
