"""What the ledger gives back when it is read: one frozen row per thing that happened."""

from dataclasses import dataclass, field
from typing import Literal

GroupState = Literal["open", "ready", "batched", "trained", "discarded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRow:
    """One started episode. The fields from `ended_at` on are empty while it runs.

    Example: `EpisodeRow(episode_id="e1", group_id="g1", task_id="t1", attempt=0, seed=7,
    started_at=100.0)` is an episode that runs.
    """

    episode_id: str
    group_id: str
    task_id: str
    attempt: int
    seed: int
    started_at: float
    ended_at: float | None = None
    """Unix seconds; None while it runs."""
    outcome: str | None = None
    """An `EpisodeEnd` value."""
    reward: float | None = None
    formula: str = ""
    signals: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    segments: int = 0
    prompt_tokens: int = 0
    """Over all calls, reused ones included."""
    cached_tokens: int = 0
    sampled_tokens: int = 0
    version_min: int = -1
    """The oldest policy version that sampled one of its tokens; -1 without tokens."""
    version_max: int = -1
    wall_s: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """One group and how far it has come.

    Example: `GroupRow(group_id="g1", task_id="t1", size=8, state="open", opened_at=100.0)`.
    """

    group_id: str
    task_id: str
    size: int
    """Episodes it is to hold."""
    state: GroupState
    opened_at: float
    ready_at: float | None = None
    eval_id: str = ""
    """Set where it belongs to an evaluation; such a group is never trained."""
    reason: str = ""
    """Why it was discarded."""
    step: int | None = None
    """The step whose batch it is in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One train step: its batch, and its report once it is done.

    Example: `StepRow(number=3, state="planned", planned_at=100.0, group_ids=("g7", "g4"))`.
    """

    number: int
    """1-based."""
    state: Literal["planned", "done"]
    planned_at: float
    group_ids: tuple[str, ...]
    """The batch, in order."""
    started_at: float | None = None
    ended_at: float | None = None
    version: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    replays: int = 0
    """How often it was taken again from an older checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRow:
    """One evaluation of one policy version on one suite.

    Example: `EvalRow(eval_id="heldout-v0", suite="heldout", version=0, label="before",
    started_at=100.0)`.
    """

    eval_id: str
    suite: str
    version: int
    label: str
    started_at: float
    ended_at: float | None = None
    result: str = ""
    """JSON of what the evaluation found; empty until it has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One busy interval of a part of the system.

    Example: `Span(lane="engine", started_at=100.0, ended_at=101.5, tokens=512)`.
    """

    lane: str
    """`rollout`, `engine`, `train`, `verify`, …"""
    started_at: float
    ended_at: float
    tokens: int = 0
    """Tokens it worked on, where that means something."""
