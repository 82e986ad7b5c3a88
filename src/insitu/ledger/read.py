"""Reading the ledger's tables as rows; each function takes an open connection."""

import json
import sqlite3

from insitu.kit.codec import from_json
from insitu.ledger.rows import EpisodeRow, EvalRow, GroupRow, Span, StepRow
from insitu.types import Fault, PolicyVersion, StepReport

_GROUPS = (
    "SELECT g.group_id, g.task_id, g.size, g.state, g.opened_at, g.ready_at, g.eval_id, g.reason,"
    " b.step FROM groups g LEFT JOIN batches b USING (group_id)"
)
_EPISODES = (
    "SELECT e.episode_id, e.group_id, e.task_id, e.attempt, e.seed, e.started_at, e.ended_at,"
    " e.outcome, e.reward, e.formula, e.signals, e.calls, e.segments, e.prompt_tokens,"
    " e.cached_tokens, e.sampled_tokens, e.version_min, e.version_max, e.wall_s, e.timings, e.note"
    " FROM episodes e JOIN groups g USING (group_id)"
)


def groups(db: sqlite3.Connection, state: str | None, eval_id: str) -> list[GroupRow]:
    """Groups of the training (`eval_id` empty) or of one evaluation, oldest first."""
    rows = db.execute(
        f"{_GROUPS} WHERE coalesce(g.eval_id, '') = :eval AND (:state IS NULL OR g.state = :state)"
        " ORDER BY coalesce(g.ready_at, g.opened_at), g.rowid",
        {"eval": eval_id, "state": state},
    )
    return [_group(row) for row in rows]


def group(db: sqlite3.Connection, group_id: str) -> GroupRow:
    """One group; KeyError where there is none of that name."""
    row = db.execute(f"{_GROUPS} WHERE g.group_id = ?", (group_id,)).fetchone()
    if row is None:
        raise KeyError(group_id)
    return _group(row)


def _group(row: sqlite3.Row) -> GroupRow:
    group_id, task_id, size, state, opened_at, ready_at, eval_id, reason, step = row
    return GroupRow(
        group_id=group_id,
        task_id=task_id,
        size=size,
        state=state,
        opened_at=opened_at,
        ready_at=ready_at,
        eval_id=eval_id or "",
        reason=reason,
        step=step,
    )


def episodes(
    db: sqlite3.Connection, group_id: str | None, eval_id: str | None, running: bool
) -> list[EpisodeRow]:
    """Episodes, oldest first, narrowed by what is not None or False."""
    rows = db.execute(
        f"{_EPISODES} WHERE (:group IS NULL OR e.group_id = :group)"
        " AND (:eval IS NULL OR coalesce(g.eval_id, '') = :eval)"
        " AND (NOT :running OR e.outcome IS NULL) ORDER BY e.started_at, e.rowid",
        {"group": group_id, "eval": eval_id, "running": running},
    )
    return [_episode(row) for row in rows]


def _episode(row: sqlite3.Row) -> EpisodeRow:
    return EpisodeRow(
        episode_id=row[0],
        group_id=row[1],
        task_id=row[2],
        attempt=row[3],
        seed=row[4],
        started_at=row[5],
        ended_at=row[6],
        outcome=row[7],
        reward=row[8],
        formula=row[9] or "",
        signals=json.loads(row[10] or "{}"),
        calls=row[11] or 0,
        segments=row[12] or 0,
        prompt_tokens=row[13] or 0,
        cached_tokens=row[14] or 0,
        sampled_tokens=row[15] or 0,
        version_min=-1 if row[16] is None else row[16],
        version_max=-1 if row[17] is None else row[17],
        wall_s=row[18] or 0.0,
        timings=json.loads(row[19] or "{}"),
        note=row[20] or "",
    )


def steps(db: sqlite3.Connection, state: str | None) -> list[StepRow]:
    """Steps with their batches, in order."""
    batches: dict[int, list[str]] = {}
    for step, group_id in db.execute("SELECT step, group_id FROM batches ORDER BY step, position"):
        batches.setdefault(step, []).append(group_id)
    rows = db.execute(
        "SELECT number, state, planned_at, started_at, ended_at, version, report, replays"
        " FROM steps WHERE (:state IS NULL OR state = :state) ORDER BY number",
        {"state": state},
    )
    return [_step(row, tuple(batches[row[0]])) for row in rows]


def _step(row: sqlite3.Row, group_ids: tuple[str, ...]) -> StepRow:
    number, state, planned_at, started_at, ended_at, version, report_json, replays = row
    report = from_json(StepReport, report_json) if report_json else None
    return StepRow(
        number=number,
        state=state,
        planned_at=planned_at,
        group_ids=group_ids,
        started_at=started_at,
        ended_at=ended_at,
        version=version,
        loss=report.loss if report else None,
        metrics=report.metrics if report else {},
        wall_s=report.wall_s if report else 0.0,
        replays=replays,
    )


def versions(db: sqlite3.Connection) -> list[PolicyVersion]:
    """Versions in the order in which they were published."""
    rows = db.execute(
        "SELECT number, digest, path, step FROM versions ORDER BY published_at, rowid"
    )
    return [PolicyVersion(number=n, digest=d, path=p, step=s) for n, d, p, s in rows]


def faults(db: sqlite3.Connection) -> list[Fault]:
    """Faults in the order in which they were written."""
    rows = db.execute("SELECT boundary, cause, at, episode_id FROM faults ORDER BY fault")
    return [Fault(boundary=b, cause=c, at=a, episode_id=e) for b, c, a, e in rows]


def evals(db: sqlite3.Connection, eval_id: str | None) -> list[EvalRow]:
    """Evaluations in order of their start."""
    rows = db.execute(
        "SELECT eval_id, suite, version, label, started_at, ended_at, result FROM evals"
        " WHERE (:eval IS NULL OR eval_id = :eval) ORDER BY started_at, rowid",
        {"eval": eval_id},
    )
    return [
        EvalRow(
            eval_id=row[0],
            suite=row[1],
            version=row[2],
            label=row[3],
            started_at=row[4],
            ended_at=row[5],
            result=row[6] or "",
        )
        for row in rows
    ]


def spans(db: sqlite3.Connection, lane: str | None) -> list[Span]:
    """Busy intervals, by start."""
    rows = db.execute(
        "SELECT lane, started_at, ended_at, tokens FROM spans"
        " WHERE (:lane IS NULL OR lane = :lane) ORDER BY started_at, rowid",
        {"lane": lane},
    )
    return [Span(lane=n, started_at=s, ended_at=e, tokens=t) for n, s, e, t in rows]


def last_moment(db: sqlite3.Connection, *, before_session: int | None) -> float:
    """The latest time written anywhere; 0.0 in an empty ledger.

    With `before_session` the start of that session does not count.
    """
    row = db.execute(
        "SELECT max(at) FROM ("
        " SELECT max(max(started_at), coalesce(max(ended_at), 0)) AS at FROM episodes"
        " UNION ALL SELECT max(max(opened_at), coalesce(max(ready_at), 0)) FROM groups"
        " UNION ALL SELECT max(max(planned_at), coalesce(max(ended_at), 0)) FROM steps"
        " UNION ALL SELECT max(ended_at) FROM spans"
        " UNION ALL SELECT max(published_at) FROM versions"
        " UNION ALL SELECT max(max(started_at), coalesce(max(ended_at), 0)) FROM evals"
        " UNION ALL SELECT max(at) FROM faults"
        " UNION ALL SELECT max(started_at) FROM sessions WHERE session IS NOT :session)",
        {"session": before_session},
    ).fetchone()
    return float(row[0] or 0.0)
