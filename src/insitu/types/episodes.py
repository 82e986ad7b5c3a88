"""Episodes, their signals and rewards, and the groups that compare them."""

from dataclasses import dataclass, field
from enum import StrEnum

from insitu.types.calls import Call, Segment
from insitu.types.sandboxes import Change


class EpisodeEnd(StrEnum):
    """How an episode ended. Each is an outcome with a reward, except `FAULT`."""

    FINISHED = "finished"
    """The agent's process ended by itself with exit code 0."""
    GAVE_UP = "gave_up"
    """The agent's process ended by itself with another exit code."""
    TIMED_OUT = "timed_out"
    """The wall-clock limit."""
    TURN_LIMIT = "turn_limit"
    """The gateway's limit of calls."""
    CONTEXT_LIMIT = "context_limit"
    """A prompt longer than the model's context."""
    FAULT = "fault"
    """A fault of the system; the episode is retried and never trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """A named number with its evidence.

    Example: `Signal(name="tests_passed", value=1.0, evidence="2 of 2 passed")`.
    """

    name: str
    value: float
    evidence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """The declared combination of an episode's signals."""

    value: float
    formula: str
    """The expression that gave the value, as declared in the recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One replacement in one line of one file (how a mutation and its repair are written down).

    Example: `Edit(path="pkg/core.py", line=12, old="<", new="<=", column=9)`.
    """

    path: str
    line: int
    """1-based."""
    old: str
    new: str
    column: int = -1
    """0-based character where `old` begins; -1: its only or first occurrence in the line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One attempt at one task by one policy inside one product."""

    episode_id: str
    group_id: str
    task_id: str
    attempt: int
    """0-based among the group's episodes."""
    end: EpisodeEnd
    calls: tuple[Call, ...]
    segments: tuple[Segment, ...]
    changes: tuple[Change, ...]
    """What the agent changed in the workspace."""
    signals: tuple[Signal, ...]
    reward: Reward
    started_at: float
    """Unix seconds."""
    wall_s: float
    seed: int
    note: str = ""
    """The product's last lines, or the fault's text."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by stage: `sandbox`, `product`, `engine`, `verify`."""

    def signal(self, name: str, default: float = 0.0) -> float:
        """The value of the signal `name`, or `default` where the episode lacks it."""
        return next((s.value for s in self.signals if s.name == name), default)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that sampled one of its tokens; -1 without tokens."""
        return min((s.oldest_version for s in self.segments if s.sampled), default=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The episodes of one task that are compared with each other."""

    group_id: str
    task_id: str
    episodes: tuple[Episode, ...]

    @property
    def oldest_version(self) -> int:
        """The oldest policy version in any of its episodes; -1 without tokens."""
        return min((e.oldest_version for e in self.episodes if e.oldest_version >= 0), default=-1)

    @property
    def has_signal(self) -> bool:
        """Whether the rewards differ, so that the group can teach something."""
        return len({e.reward.value for e in self.episodes}) > 1
