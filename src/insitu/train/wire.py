"""What the trainer's server and its client say to each other: JSON over HTTP."""

from dataclasses import dataclass

from insitu.types import Sample

STEP = "/step"
PUBLISH = "/publish"
SAVE = "/save"
RESUME = "/resume"
STATUS = "/status"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRequest:
    """One optimiser step."""

    number: int | None
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """Where a checkpoint lies."""

    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """The version after a resume."""

    version: int
