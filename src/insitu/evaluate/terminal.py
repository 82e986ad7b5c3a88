"""The report of a run for a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from insitu.evaluate.charts import clock, interval, percent, short_number, sparkline
from insitu.evaluate.report import (
    BASELINE_NAMES,
    ReportData,
    behaviours,
    estimate,
    evaluations,
    headline,
    words,
)
from insitu.evaluate.transcripts import EpisodeText, Transcript

_BAR = 30
_KINDS = {"solved": "became solved", "lost": "lost", "unsolved": "never solved"}
_RESULT_LINES = 6


def print_report(data: ReportData, console: Console, *, transcripts: bool = True) -> None:
    """Print what `index.html` shows, shorter; the result comes last."""
    parts = [_training(data), _ends(data), _behaviours(data), _heldout(data)]
    if transcripts:
        parts[2:2] = [_transcript(t) for t in data.transcripts]
    for part in parts:
        if part is not None:
            console.print(Padding(part, (0, 0, 1, 0)))
    console.print(Text(headline(data), style="bold"))


def _training(data: ReportData) -> RenderableType | None:
    if not data.steps:
        return None
    rewards = [s.reward for s in data.steps]
    passed = [s.signals["passed"] for s in data.steps if "passed" in s.signals]
    table = Table.grid(padding=(0, 2))
    for name, values, show in (("reward", rewards, short_number), ("pass rate", passed, percent)):
        if values:
            first, last = ends_of(values)
            table.add_row(name, sparkline(values), f"{show(first)} → {show(last)}")
    lag = max(s.lag_max for s in data.steps)
    table.add_row("staleness", sparkline([s.lag_max for s in data.steps]), f"at most {lag}")
    busy = ", ".join(f"{lane.name} busy {percent(lane.share)}" for lane in data.lanes)
    counts = (
        f"{len(data.steps)} steps, {short_number(data.episodes)} episodes ({data.lost_episodes} lost)"
        f" in {clock(data.wall_s)}"
    )
    speed = (
        f"{short_number(data.engine_tokens_per_s)} tokens/s sampled,"
        f" {short_number(data.trainer_tokens_per_s)} trained; {busy or 'utilisation unknown'};"
        f" both {percent(data.overlap_fraction)}"
    )
    return Group(Text("Training", style="bold"), Text(counts), table, Text(speed))


def ends_of(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and the last tenth of a curve."""
    n = max(1, len(values) // 10)
    return sum(values[:n]) / n, sum(values[-n:]) / n


def _ends(data: ReportData) -> RenderableType | None:
    rows = [(name, result.ends) for name, _, result in evaluations(data)]
    rows.append(("training", data.training_ends))
    rows = [(name, ends) for name, ends in rows if ends]
    if not rows:
        return None
    table = Table(title="How episodes ended", title_justify="left", box=None, pad_edge=False)
    kinds = sorted({kind for _, ends in rows for kind in ends})
    table.add_column("")
    for kind in kinds:
        table.add_column(words(kind), justify="right")
    for name, ends in rows:
        total = sum(ends.values())
        table.add_row(name, *(percent(ends.get(kind, 0) / total) for kind in kinds))
    return table


def _behaviours(data: ReportData) -> RenderableType | None:
    found = behaviours(data)
    if not found:
        return None
    table = Table(title="Behaviour", title_justify="left", box=None, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column)
    for name, shares in found:
        by_tone = dict(shares)
        cells = [by_tone.get(tone) for tone in ("before", "after")]
        table.add_row(name, *(interval(e) if e else "" for e in cells))
    return table


def _heldout(data: ReportData) -> RenderableType | None:
    rows = [(BASELINE_NAMES.get(b.name, b.name), b.rate, "yellow", None) for b in data.baselines]
    styles = {"before": "bright_black", "after": "blue"}
    results = [(name, r.rate, styles[tone], r) for name, tone, r in evaluations(data)]
    everything = [*rows, *results]
    if not everything:
        return None
    table = Table(title="Held-out tasks", title_justify="left", box=None, pad_edge=False)
    for column in ("", "", "pass@1", "tokens", "calls", "seconds"):
        table.add_column(column, no_wrap=True)
    for name, rate, style, result in everything:
        bar = Text("█" * round(_BAR * rate.value), style=style)
        costs = [result.tokens, result.calls, result.seconds] if result else []
        table.add_row(name, bar, interval(rate), *(estimate(cost) for cost in costs))
    return table


def _transcript(transcript: Transcript) -> RenderableType:
    t = transcript
    told = t.before if t.kind == "lost" else t.after
    when = "before" if t.kind == "lost" else "after"
    title = f"{_KINDS[t.kind]}: {t.task_id} ({when}, reward {short_number(told.reward)})"
    return Panel(
        Group(Text(t.instruction, style="italic"), *_turns(told)), title=title, title_align="left"
    )


def _turns(told: EpisodeText) -> list[Text]:
    lines = []
    for turn in told.turns:
        if turn.text:
            lines.append(Text(turn.text, style="dim"))
        for use in turn.tools:
            lines.append(Text(f"> {use.name}({use.arguments})", style="bold"))
            shown = use.result.split("\n")
            if len(shown) > _RESULT_LINES:
                shown = [*shown[:_RESULT_LINES], f"... {len(shown) - _RESULT_LINES} more lines"]
            lines.append(Text("\n".join(f"  {line}" for line in shown)))
    return lines
