"""What a trainer service says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerStatus:
    """Where a trainer stands; answered also while a step runs."""

    step: int
    """Steps done; the policy's version."""
    training: bool
    """A step is running."""
    steps_taken: int
    """By this process, since it started."""
    busy_s: float
    """Seconds in steps, since it started."""
    tokens: int
    """Tokens trained on, since it started."""
