"""What a report asks of a ledger: the table of steps, ends, faults, overlap, what was lost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from insitu.ledger.intervals import Interval, share, union
from insitu.ledger.ledger import Ledger
from insitu.ledger.rows import EpisodeRow, StepRow


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """One step that is done, and the episodes it was trained on.

    Example: `StepSummary(step=3, version=3, loss=0.12, reward=0.4, signals={"passed": 0.4}, …)`.
    """

    step: int
    version: int
    loss: float
    reward: float
    """Mean over the batch's episodes."""
    signals: dict[str, float]
    """Mean of each signal over the episodes that have it."""
    episodes: int
    groups: int
    calls: float
    """Mean per episode."""
    sampled_tokens: int
    lag_max: int
    """Version trained, minus one, minus the oldest version that sampled a token of the batch."""
    started_at: float
    ended_at: float
    wall_s: float
    metrics: dict[str, float] = field(default_factory=dict)
    """As the trainer reported them."""


def step_table(ledger: Ledger) -> list[StepSummary]:
    """The steps that are done, in order."""
    by_group: dict[str, list[EpisodeRow]] = {}
    for row in ledger.episodes(eval_id=""):
        if row.outcome not in (None, "fault"):
            by_group.setdefault(row.group_id, []).append(row)
    return [
        _summary(step, [e for g in step.group_ids for e in by_group.get(g, ())])
        for step in ledger.steps("done")
    ]


def _summary(step: StepRow, episodes: Sequence[EpisodeRow]) -> StepSummary:
    version = step.version or 0
    count = max(len(episodes), 1)
    oldest = min((e.version_min for e in episodes if e.version_min >= 0), default=version - 1)
    return StepSummary(
        step=step.number,
        version=version,
        loss=step.loss or 0.0,
        reward=sum(e.reward or 0.0 for e in episodes) / count,
        signals=mean_signals(episodes),
        episodes=len(episodes),
        groups=len(step.group_ids),
        calls=sum(e.calls for e in episodes) / count,
        sampled_tokens=sum(e.sampled_tokens for e in episodes),
        lag_max=version - 1 - oldest,
        started_at=step.started_at or 0.0,
        ended_at=step.ended_at or 0.0,
        wall_s=step.wall_s,
        metrics=step.metrics,
    )


def mean_signals(episodes: Sequence[EpisodeRow]) -> dict[str, float]:
    """Mean of each signal over the episodes that have it, by name."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.signals.items():
            values.setdefault(name, []).append(value)
    return {name: sum(v) / len(v) for name, v in sorted(values.items())}


def ends_by_kind(ledger: Ledger, *, eval_id: str = "") -> dict[str, int]:
    """How many episodes of the training, or of an evaluation, ended in each way."""
    ends = Counter(e.outcome for e in ledger.episodes(eval_id=eval_id) if e.outcome is not None)
    return dict(ends.most_common())


def faults_by_cause(ledger: Ledger) -> dict[tuple[str, str], int]:
    """How many faults of each boundary and cause."""
    return dict(Counter((f.boundary, f.cause) for f in ledger.faults()).most_common())


def discards_by_reason(ledger: Ledger) -> dict[str, int]:
    """How many groups were discarded for each reason."""
    return dict(Counter(g.reason for g in ledger.groups("discarded")).most_common())


def lost_episodes(ledger: Ledger) -> int:
    """Episodes started minus episodes ended; 0 when nothing runs."""
    started, ended = ledger.query("SELECT count(*), count(outcome) FROM episodes")[0]
    return int(started - ended)


def busy(ledger: Ledger, lane: str) -> list[Interval]:
    """When a part of the system worked, as disjoint intervals.

    The lane `rollout` is when an episode of the training ran, `train` when the trainer worked on
    a step; spans added under these names count as well. Other lanes have their spans only.
    """
    intervals = [(s.started_at, s.ended_at) for s in ledger.spans(lane)]
    if lane == "rollout":
        intervals += [
            (e.started_at, e.ended_at)
            for e in ledger.episodes(eval_id="")
            if e.ended_at is not None
        ]
    if lane == "train":
        intervals += [
            (s.started_at, s.ended_at)
            for s in ledger.steps("done")
            if s.started_at is not None and s.ended_at is not None
        ]
    return union(intervals)


def training_time(ledger: Ledger) -> list[Interval]:
    """From the first episode or step of the training to the last, while a controller ran."""
    work = busy(ledger, "rollout") + busy(ledger, "train")
    if not work:
        return []
    first, last = min(w[0] for w in work), max(w[1] for w in work)
    owned = [(start, last if end is None else end) for start, end in ledger.sessions()]
    return union((max(start, first), min(end, last)) for start, end in owned)


def overlap_fraction(ledger: Ledger, lanes: Sequence[str] = ("rollout", "train")) -> float:
    """Share of the training's wall time in which all `lanes` were busy at the same moment."""
    return share([busy(ledger, lane) for lane in lanes], training_time(ledger))


def utilisation(ledger: Ledger, lane: str) -> float:
    """Share of the training's wall time in which `lane` was busy."""
    return overlap_fraction(ledger, (lane,))
