"""What goes into and comes out of a train step, and faults."""

from dataclasses import dataclass, field

from insitu.types.calls import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One segment with what the loss needs.

    Example: an episode with two segments gives two samples with the same advantage.
    """

    segment: Segment
    advantage: float
    """Of the episode: its reward minus its group's mean; the same for all its samples."""
    lag: int = 0
    """Trainer version minus the segment's oldest version."""
    episode_id: str = ""
    group_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one train step did."""

    step: int
    """1-based; after this step the policy has this version number."""
    version: int
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    """E.g. `grad_norm`, `k3`, `masked_share`, `entropy`, `tokens`, `tokens_per_s`, `lag_mean`."""
    wall_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of the system, counted by cause."""

    boundary: str
    """`sandbox`, `engine`, `gateway`, `product` or `train`."""
    cause: str
    at: float
    """Unix seconds."""
    episode_id: str = ""
