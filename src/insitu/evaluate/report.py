"""The report of a run: `report/index.html` and `report/summary.json`."""

import json
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from insitu.evaluate import charts
from insitu.evaluate.baselines import Baseline
from insitu.evaluate.charts import Dot, Line, Points, clock, interval, percent, short_number
from insitu.evaluate.stats import Estimate, PairedTest
from insitu.evaluate.suite import EvalResult
from insitu.evaluate.transcripts import Transcript
from insitu.kit.atomic import write_atomic
from insitu.ledger.summary import StepSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyLane:
    """When one process worked.

    Example: `BusyLane(name="trainer", tone="train", busy=((0.0, 4.2), (6.0, 9.9)), share=0.81)`.
    """

    name: str
    tone: str
    """`rollout` or `train`: its colour."""
    busy: tuple[tuple[float, float], ...]
    """Seconds since the run's start, disjoint, in order."""
    share: float
    """Of the run's wall time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """All that a report shows; what is None or empty is left out of it.

    Example: `ReportData(run="demo", steps=step_table(ledger), before=…, after=…, wall_s=690.0)`.
    """

    run: str
    """Name of the run."""
    steps: tuple[StepSummary, ...] = ()
    before: EvalResult | None = None
    """Held-out tasks, the base policy, sampled."""
    after: EvalResult | None = None
    """Held-out tasks, the last policy, sampled."""
    greedy_before: EvalResult | None = None
    greedy_after: EvalResult | None = None
    comparison: PairedTest | None = None
    """After against before."""
    baselines: tuple[Baseline, ...] = ()
    """Without a model, on the same held-out tasks."""
    training_ends: dict[str, int] = field(default_factory=dict)
    """How the episodes of the training ended."""
    faults: dict[str, int] = field(default_factory=dict)
    """Faults of the system by cause; each was retried."""
    discards: dict[str, int] = field(default_factory=dict)
    """Groups that were not trained, by reason."""
    episodes: int = 0
    """Started in the whole run, evaluations included."""
    lost_episodes: int = 0
    """Started but never ended; must be 0."""
    wall_s: float = 0.0
    engine_tokens_per_s: float = 0.0
    """Sampled tokens over the wall time of the training."""
    trainer_tokens_per_s: float = 0.0
    """Trained tokens over the wall time of the trainer's steps."""
    engine_rate: Points = ()
    """Seconds since the start of the training, tokens per second of the engine."""
    trainer_rate: Points = ()
    lanes: tuple[BusyLane, ...] = ()
    overlap_fraction: float = 0.0
    """Share of the training's wall time in which rollout and training both worked."""
    transcripts: tuple[Transcript, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    """What else to name: model, machine, seed, versions, recipe."""
    finished_at: float = 0.0
    """Unix seconds; 0 leaves the date out."""


def summary(data: ReportData) -> dict[str, Any]:
    """The numbers of `summary.json`; None where a run has none (no evaluation, no baseline)."""
    tables = [b.rate.value for b in data.baselines if b.name.startswith("table")]
    difference = data.comparison.difference if data.comparison else None
    return {
        "heldout_pass_before": data.before.rate.value if data.before else None,
        "heldout_pass_after": data.after.rate.value if data.after else None,
        # The best of the tables, so that the comparison is the hardest one.
        "heldout_pass_table_baseline": max(tables, default=None),
        "heldout_pass_greedy_before": data.greedy_before.rate.value if data.greedy_before else None,
        "diff_ci95": [difference.low, difference.high] if difference else None,
        "episodes": data.episodes,
        "steps": len(data.steps),
        "wall_s": data.wall_s,
        "engine_tokens_per_s": data.engine_tokens_per_s,
        "trainer_tokens_per_s": data.trainer_tokens_per_s,
        "overlap_fraction": data.overlap_fraction,
        "lost_episodes": data.lost_episodes,
    }


def write_report(data: ReportData, folder: Path) -> Path:
    """Write `index.html` (one file, no network needed) and `summary.json` into `folder`.

    Returns:
        Path of the page.
    """
    write_atomic(folder / "summary.json", json.dumps(summary(data), indent=2) + "\n")
    page = folder / "index.html"
    write_atomic(page, html(data))
    return page


def html(data: ReportData) -> str:
    """The page as text."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "number": short_number, "clock": clock}
    environment.filters["interval"] = interval
    environment.filters["estimate"] = estimate
    environment.filters |= {"words": words, "p_value": p_value}
    template = files("insitu.evaluate").joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = environment.from_string(template)
    date = time.strftime("%-d %B %Y, %H:%M UTC", time.gmtime(data.finished_at))
    return page.render(
        data=data,
        headline=headline(data),
        date=date if data.finished_at else "",
        evaluations=evaluations(data),
        charts=_charts(data),
        kinds={"solved": "Became solved", "lost": "Lost", "unsolved": "Never solved"},
    )


def estimate(e: Estimate) -> str:
    """A number with its interval as text: 412 [380, 450]."""
    return f"{short_number(e.value)} [{short_number(e.low)}, {short_number(e.high)}]"


def words(name: str) -> str:
    """A name of code as words: `turn_limit` becomes `turn limit`."""
    return name.replace("_", " ")


def headline(data: ReportData) -> str:
    """The result in one or two sentences."""
    if data.before is None or data.after is None:
        return f"{len(data.steps)} steps, {data.episodes} episodes, not yet evaluated twice."
    text = (
        f"Held-out pass@1 went from {interval(data.before.rate)} to {interval(data.after.rate)}"
        f" on {data.after.rate.tasks} tasks."
    )
    if data.comparison is None:
        return text
    d = data.comparison.difference
    return (
        f"{text} The paired difference is {100 * d.value:+.1f} points"
        f" [{100 * d.low:+.1f}, {100 * d.high:+.1f}], p {p_value(data.comparison.p_value)}."
    )


def p_value(p: float) -> str:
    """A p-value after the letter p: `= 0.012`, `< 0.0001`."""
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


def evaluations(data: ReportData) -> list[tuple[str, str, EvalResult]]:
    """The evaluations there are: name, tone, result."""
    found = [
        ("before, greedy", "before", data.greedy_before),
        ("before", "before", data.before),
        ("after, greedy", "after", data.greedy_after),
        ("after", "after", data.after),
    ]
    return [(name, tone, result) for name, tone, result in found if result is not None]


def behaviours(data: ReportData) -> list[tuple[str, list[tuple[str, Estimate]]]]:
    """Each behaviour with its shares before and after, where there are any."""
    pairs = [("before", data.before), ("after", data.after)]
    names = dict.fromkeys(name for _, result in pairs if result for name in result.behaviours)
    return [
        (name, [(tone, r.behaviours[name]) for tone, r in pairs if r and name in r.behaviours])
        for name in names
    ]


BASELINE_NAMES = {
    "random": "random legal edits",
    "table": "most frequent fixes",
    "table_rate": "most likely fixes",
}

END_TONES = {
    "finished": "finished",
    "gave_up": "gave-up",
    "turn_limit": "turn-limit",
    "context_limit": "context-limit",
    "timed_out": "timed-out",
    "fault": "fault",
}


def _charts(data: ReportData) -> dict[str, Markup]:
    rates = [
        (BASELINE_NAMES.get(b.name, b.name), [Dot(name=b.name, tone="none", estimate=b.rate)])
        for b in data.baselines
    ]
    rates += [
        (name, [Dot(name=name, tone=tone, estimate=result.rate)])
        for name, tone, result in evaluations(data)
    ]
    ends = [(name, result.ends) for name, _, result in evaluations(data)]
    ends.append(("training", data.training_ends))
    shares = [
        (name, [Dot(name=tone, tone=tone, estimate=e) for tone, e in found])
        for name, found in behaviours(data)
    ]
    return {
        "heldout": charts.dot_plot("Pass@1 on held-out tasks, 95 % intervals", rates),
        "ends": charts.share_bars("How episodes ended", ends, END_TONES),
        "behaviours": charts.dot_plot(
            "Share of held-out episodes, 95 % intervals",
            shares,
            names=[("before", "before"), ("after", "after")],
        ),
        "lanes": charts.lanes(
            "When each process was busy",
            [(lane.name, lane.tone, lane.busy, lane.share) for lane in data.lanes],
            end=max((b for lane in data.lanes for _, b in lane.busy), default=0.0),
        ),
        **_curves(data),
    }


def _curves(data: ReportData) -> dict[str, Markup]:
    window = max(1, len(data.steps) // 10)

    def smooth(name: str, points: Points, tone: str = "after") -> list[Line]:
        mean = Line(name=name, tone=tone, points=charts.moving_mean(points, window))
        return [Line(name="one step", tone=tone, points=points, faint=True), mean]

    def metric(name: str) -> Points:
        return [(s.step, s.metrics[name]) for s in data.steps if name in s.metrics]

    over = f"mean of {window}" if window > 1 else "each step"
    reward = [(s.step, s.reward) for s in data.steps]
    passed = [(s.step, s.signals["passed"]) for s in data.steps if "passed" in s.signals]
    lag = [
        Line(name="oldest", tone="before", points=[(s.step, s.lag_max) for s in data.steps]),
        Line(name="mean", tone="after", points=metric("lag_mean")),
    ]
    speed = [
        Line(name="engine", tone="rollout", points=data.engine_rate),
        Line(name="trainer", tone="train", points=data.trainer_rate),
    ]
    step = "step"
    draw = charts.line_chart
    return {
        "reward": draw("Mean reward", smooth(over, reward), x_name=step, floor=None),
        "passed": draw("Pass rate, training", smooth(over, passed), x_name=step, shares=True),
        "lag": draw("Staleness in versions", lag, x_name=step),
        "speed": draw("Tokens per second", speed, x_name="seconds of training"),
        "entropy": draw("Entropy in nats", smooth(over, metric("entropy")), x_name=step),
        "k3": draw("KL to the sampling policy (k3)", smooth(over, metric("k3")), x_name=step),
    }
