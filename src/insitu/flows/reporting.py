"""A run's ledger → its report."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from insitu.evaluate.baselines import Baseline, fit_table, random_baseline, table_baseline
from insitu.evaluate.report import BusyLane, ReportData, write_report
from insitu.evaluate.suite import EvalResult, compare_results
from insitu.evaluate.terminal import print_report
from insitu.evaluate.transcripts import choose_transcripts
from insitu.flows.evaluation import AFTER, BEFORE, GREEDY_AFTER, GREEDY_BEFORE, read_result
from insitu.ledger import summary
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.tasks.mutate import candidate_edits
from insitu.tasks.read import read_record
from insitu.types import CandidateEdit, Episode, Task


def baselines_of(
    train: Sequence[Task], heldout: Sequence[Task], *, tries: int, seed: int
) -> tuple[Baseline, ...]:
    """What needs no model, on the held-out tasks whose legal edits were all run."""
    records = {t.task_id: read_record(Path(t.folder)) for t in heldout}
    edits = {task: r.candidates for task, r in records.items() if r.candidates and r.outcomes_run}
    if not edits:
        return ()
    table = fit_table(_legal_edits(task) for task in train)
    return (
        random_baseline(edits, tries=tries, seed=seed),
        table_baseline(table, edits, tries=tries, seed=seed),
        table_baseline(table, edits, tries=tries, seed=seed, by="rate"),
    )


def _legal_edits(task: Task) -> Sequence[CandidateEdit]:
    """All legal edits of a training task's broken function; the recorded repair passes."""
    record = read_record(Path(task.folder))
    if record.candidates:
        return record.candidates
    source = (Path(task.layers[-1]) / record.path).read_text(encoding="utf-8")
    found = candidate_edits(source, record.path, record.first_line, record.last_line)
    return [
        CandidateEdit(edit=edit, family=family, passes=edit == record.fix) for edit, family in found
    ]


def report_data(
    folder: RunFolder, ledger: Ledger, *, seed: int, baselines: tuple[Baseline, ...]
) -> ReportData:
    """All that the report shows, from the run's folder alone (and the baselines)."""
    results = {
        name: read_result(ledger, name) for name in (BEFORE, AFTER, GREEDY_BEFORE, GREEDY_AFTER)
    }
    before, after = results[BEFORE], results[AFTER]
    store = EpisodeStore(folder.episodes)
    work = summary.training_time(ledger)
    start, wall = (work[0][0], sum(b - a for a, b in work)) if work else (0.0, 0.0)
    rows = ledger.episodes(eval_id="")
    steps = tuple(summary.step_table(ledger))
    return ReportData(
        run=folder.name,
        steps=steps,
        before=before,
        after=after,
        greedy_before=results[GREEDY_BEFORE],
        greedy_after=results[GREEDY_AFTER],
        comparison=compare_results(before, after, seed=seed) if before and after else None,
        baselines=baselines,
        training_ends=summary.ends_by_kind(ledger),
        faults={f"{b}: {c}": n for (b, c), n in summary.faults_by_cause(ledger).items()},
        discards=summary.discards_by_reason(ledger),
        episodes=ledger.query("SELECT count(*) FROM episodes")[0][0],
        lost_episodes=summary.lost_episodes(ledger),
        wall_s=sum((end or start) - start for start, end in _sessions(ledger)),
        engine_tokens_per_s=sum(r.sampled_tokens for r in rows) / wall if wall else 0.0,
        trainer_tokens_per_s=_trainer_rate(steps),
        engine_rate=_rate([(r.ended_at or 0.0, r.sampled_tokens) for r in rows], start, wall),
        trainer_rate=tuple((s.ended_at - start, s.metrics.get("tokens_per_s", 0.0)) for s in steps),
        lanes=_lanes(ledger, start),
        overlap_fraction=summary.overlap_fraction(ledger),
        transcripts=choose_transcripts(
            _episodes(ledger, store, BEFORE), _episodes(ledger, store, AFTER)
        ),
        facts={"seed": str(seed)},
        finished_at=time.time(),
    )


def report(data: ReportData, folder: RunFolder, console: Console | None) -> Path:
    """Write the page and the summary, and print the short form."""
    page = write_report(data, folder.report)
    if console is not None:
        print_report(data, console)
    return page


def _sessions(ledger: Ledger) -> list[tuple[float, float | None]]:
    now = time.time()
    return [(start, end if end is not None else now) for start, end in ledger.sessions()]


def _trainer_rate(steps: Sequence[summary.StepSummary]) -> float:
    wall = sum(s.wall_s for s in steps)
    return sum(s.metrics.get("tokens", 0.0) for s in steps) / wall if wall else 0.0


def _lanes(ledger: Ledger, start: float) -> tuple[BusyLane, ...]:
    names = {"rollout": "rollout", "train": "trainer"}
    return tuple(
        BusyLane(
            name=name,
            tone=lane,
            busy=tuple((a - start, b - start) for a, b in summary.busy(ledger, lane)),
            share=summary.utilisation(ledger, lane),
        )
        for lane, name in names.items()
    )


def _rate(
    events: Sequence[tuple[float, int]], start: float, wall: float, parts: int = 40
) -> tuple[tuple[float, float], ...]:
    """Tokens per second over equal parts of the run, at each part's middle."""
    if not wall:
        return ()
    width = wall / parts
    totals = [0.0] * parts
    for at, tokens in events:
        totals[min(parts - 1, max(0, int((at - start) / width)))] += tokens
    return tuple(((i + 0.5) * width, total / width) for i, total in enumerate(totals))


def _episodes(ledger: Ledger, store: EpisodeStore, eval_id: str) -> list[Episode]:
    rows = ledger.groups("ready", eval_id=eval_id)
    return [e for row in rows for e in store.read_group(row.group_id).episodes]


def result_line(name: str, result: EvalResult | None) -> str:
    """One line for a person."""
    if result is None:
        return f"{name}: not measured"
    rate = result.rate
    return f"{name}: {rate.value:.1%} (95% interval {rate.low:.1%} to {rate.high:.1%})"
