"""The ledger: what happened in a run, written once.

Every method that writes is one transaction, safe from a kill when it returns (`schema` says
which are safe from a power cut as well). So a controller killed between any two statements
leaves a state from which `recovery.recover` goes on:

    start_episode ─► (the attempt runs) ─► EpisodeStore.write_episode ─► end_episode
    open_group ─► … ─► EpisodeStore.write_group ─► ready_group ─► plan_step ─► finish_step
                                                └► discard_group

A group's state only moves forward, except that `rewind` takes steps back to `planned` when the
trainer resumes from a checkpoint that is older than they are; their batches stay what they were.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from insitu.kit.codec import to_json
from insitu.ledger import read
from insitu.ledger.rows import EpisodeRow, EvalRow, GroupRow, GroupState, Span, StepRow
from insitu.ledger.schema import connect, named_errors
from insitu.types import Episode, EpisodeEnd, Fault, PolicyVersion, StepReport

P = ParamSpec("P")
T = TypeVar("T")


class Ledger:
    """One run's ledger, open for reading or, in one process at a time, for writing.

    Methods may be called from any thread. Those that write raise `ValueError` where the call
    contradicts what is written already (an episode that ends twice, a group in two batches),
    and `UsageError` where the disk is full; nothing is written then.

    Example:
        with Ledger(folder.ledger, write=True) as ledger:
            ledger.open_group("g1", task_id="t1", size=2)
            ledger.start_episode("e1", group_id="g1", task_id="t1", attempt=0, seed=7)
    """

    def __init__(
        self, path: Path, *, write: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the ledger at `path`; the writer makes it where it is missing.

        Raises:
            UsageError: no ledger (reading), disk full, or not writable.
            CorruptError: not a ledger, damaged, or of another format.
        """
        self.path = path
        self._clock = clock
        self._write = write
        self._lock = threading.RLock()
        self._connection = connect(path, write=write)
        self._session = self._begin_session() if write else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session and fold the write-ahead log into the one file; may be called twice."""
        if self._session is not None:
            with self._transaction(durable=True) as db:
                db.execute(
                    "UPDATE sessions SET ended_at = ? WHERE session = ?",
                    (self._clock(), self._session),
                )
            self._session = None
            with self._lock, named_errors(self.path):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    # Groups

    def open_group(self, group_id: str, *, task_id: str, size: int, eval_id: str = "") -> None:
        """A group of `size` episodes begins; with `eval_id` it belongs to an evaluation."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO groups (group_id, task_id, size, eval_id, state, opened_at)"
                " VALUES (?, ?, ?, ?, 'open', ?)",
                (group_id, task_id, size, eval_id or None, self._clock()),
            )

    def ready_group(self, group_id: str) -> None:
        """All its episodes have ended and are stored as tokens; it may be trained."""
        with self._transaction(durable=True) as db:
            self._move(db, group_id, ("open",), "ready")
            db.execute(
                "UPDATE groups SET ready_at = ? WHERE group_id = ?", (self._clock(), group_id)
            )

    def discard_group(self, group_id: str, reason: str) -> None:
        """It will not be trained, and `reason` says why: `stale`, `no signal`, …"""
        with self._transaction() as db:
            self._move(db, group_id, ("open", "ready"), "discarded")
            db.execute("UPDATE groups SET reason = ? WHERE group_id = ?", (reason, group_id))

    # Episodes

    def start_episode(
        self, episode_id: str, *, group_id: str, task_id: str, attempt: int, seed: int
    ) -> None:
        """Written before anything of the episode runs."""
        with self._transaction() as db:
            state = db.execute(
                "SELECT state FROM groups WHERE group_id = ?", (group_id,)
            ).fetchone()
            if state is None or state[0] != "open":
                raise ValueError(f"episode {episode_id}: group {group_id} is not open")
            db.execute(
                "INSERT INTO episodes (episode_id, group_id, task_id, attempt, seed, started_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (episode_id, group_id, task_id, attempt, seed, self._clock()),
            )

    def end_episode(self, episode: Episode, *, fault: Fault | None = None) -> None:
        """The episode's one end.

        A fault is counted by its cause; where `fault` is not given, it is read from the note,
        which begins with the error's name: `EngineError: connection refused`.
        """
        if episode.end is EpisodeEnd.FAULT:
            fault = fault or _fault_in_note(episode, self._clock())
        elif fault is not None:
            raise ValueError(f"episode {episode.episode_id}: ended {episode.end} and by a fault")
        values = _end_values(episode) | {"ended_at": self._clock()}
        assignments = ", ".join(f"{column} = :{column}" for column in values)
        with self._transaction() as db:
            done = db.execute(
                f"UPDATE episodes SET {assignments}"  # noqa: S608 (the columns are ours)
                " WHERE episode_id = :episode_id AND outcome IS NULL",
                values | {"episode_id": episode.episode_id},
            )
            if done.rowcount != 1:
                raise ValueError(f"episode {episode.episode_id}: not running, cannot end")
            if fault is not None:
                _insert_fault(db, fault, episode.episode_id)

    def interrupt(self, *, cause: str) -> tuple[str, ...]:
        """End all running episodes as faults of the system: their controller is dead.

        Returns:
            Their names. Their end is the last moment of which the ledger knows.
        """
        with self._transaction() as db:
            running = db.execute(
                "SELECT episode_id, started_at FROM episodes"
                " WHERE outcome IS NULL ORDER BY started_at, rowid"
            ).fetchall()
            at = read.last_moment(db, before_session=self._session)
            for episode_id, started_at in running:
                ended_at = max(at, started_at)
                db.execute(
                    "UPDATE episodes SET outcome = 'fault', ended_at = ?, wall_s = ?, note = ?"
                    " WHERE episode_id = ?",
                    (ended_at, ended_at - started_at, cause, episode_id),
                )
                fault = Fault(boundary="controller", cause=cause, at=ended_at)
                _insert_fault(db, fault, episode_id)
        return tuple(row[0] for row in running)

    # Steps

    def plan_step(self, number: int, group_ids: Sequence[str]) -> None:
        """Step `number`, the next one, will train these groups in this order.

        Written before the trainer is asked, so that a batch is the same when it is repeated.
        """
        if not group_ids:
            raise ValueError(f"step {number}: an empty batch")
        with self._transaction(durable=True) as db:
            last = db.execute("SELECT coalesce(max(number), 0) FROM steps").fetchone()[0]
            if number != last + 1:
                raise ValueError(f"step {number}: the next one is {last + 1}")
            db.execute(
                "INSERT INTO steps (number, state, planned_at) VALUES (?, 'planned', ?)",
                (number, self._clock()),
            )
            for position, group_id in enumerate(group_ids):
                self._move(db, group_id, ("ready",), "batched", trainable=True)
                db.execute("INSERT INTO batches VALUES (?, ?, ?)", (group_id, number, position))

    def finish_step(self, report: StepReport, *, started_at: float) -> None:
        """The trainer has taken the step. `started_at` is when it began to work on it."""
        with self._transaction(durable=True) as db:
            first = db.execute("SELECT min(number) FROM steps WHERE state = 'planned'").fetchone()
            if first[0] != report.step:
                raise ValueError(f"step {report.step}: the next one to finish is {first[0]}")
            db.execute(
                "UPDATE steps SET state = 'done', started_at = ?, ended_at = ?, version = ?,"
                " report = ? WHERE number = ?",
                (
                    started_at,
                    self._clock(),
                    report.version,
                    to_json(report).decode(),
                    report.step,
                ),
            )
            db.execute(
                "UPDATE groups SET state = 'trained' WHERE group_id IN"
                " (SELECT group_id FROM batches WHERE step = ?)",
                (report.step,),
            )

    def rewind(self, step: int) -> int:
        """The trainer resumed from its checkpoint of `step`: later steps are planned again.

        Returns:
            How many steps that are. They are to be taken with the batches they had.
        """
        with self._transaction(durable=True) as db:
            done = db.execute(
                "UPDATE steps SET state = 'planned', started_at = NULL, ended_at = NULL,"
                " version = NULL, report = NULL, replays = replays + 1"
                " WHERE number > ? AND state = 'done'",
                (step,),
            )
            db.execute(
                "UPDATE groups SET state = 'batched' WHERE state = 'trained' AND group_id IN"
                " (SELECT group_id FROM batches WHERE step > ?)",
                (step,),
            )
        return done.rowcount

    # Versions, faults, spans, evaluations, notes

    def add_version(self, version: PolicyVersion) -> None:
        """Weights were published. The same number and digest again (a replay) change nothing."""
        with self._transaction(durable=True) as db:
            db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (version.number, version.digest, version.path, version.step, self._clock()),
            )

    def add_fault(self, fault: Fault) -> None:
        """A fault of the system outside any episode, e.g. an engine that had to be restarted."""
        with self._transaction() as db:
            _insert_fault(db, fault, fault.episode_id)

    def add_span(self, lane: str, *, started_at: float, ended_at: float, tokens: int = 0) -> None:
        """A part of the system (`rollout`, `engine`, `train`, …) was busy in this interval."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO spans VALUES (?, ?, ?, ?)", (lane, started_at, ended_at, tokens)
            )

    def start_eval(self, eval_id: str, *, suite: str, version: int, label: str = "") -> None:
        """An evaluation begins, or goes on where it has begun before with the same values."""
        with self._transaction() as db:
            known = read.evals(db, eval_id)
            if known and (known[0].suite, known[0].version) != (suite, version):
                raise ValueError(f"eval {eval_id}: began with {known[0].suite} {known[0].version}")
            db.execute(
                "INSERT INTO evals (eval_id, suite, version, label, started_at)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (eval_id, suite, version, label, self._clock()),
            )

    def finish_eval(self, eval_id: str, result: str) -> None:
        """The evaluation has ended; `result` is JSON. Once only."""
        with self._transaction(durable=True) as db:
            done = db.execute(
                "UPDATE evals SET ended_at = ?, result = ? WHERE eval_id = ? AND ended_at IS NULL",
                (self._clock(), result, eval_id),
            )
            if done.rowcount != 1:
                raise ValueError(f"eval {eval_id}: not running, cannot finish")

    def set_meta(self, key: str, value: str) -> None:
        """Note something about the run that is no event, e.g. the versions of its software."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (key, value),
            )

    # Reading

    def meta(self, key: str, default: str = "") -> str:
        """What `set_meta` noted under `key`."""
        rows = self.query("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else default

    def groups(self, state: GroupState | None = None, *, eval_id: str = "") -> list[GroupRow]:
        """Groups of the training or, with `eval_id`, of an evaluation, oldest first."""
        return self._read(read.groups, state, eval_id)

    def group(self, group_id: str) -> GroupRow:
        """One group.

        Raises:
            KeyError: there is none of that name.
        """
        return self._read(read.group, group_id)

    def episodes(
        self, *, group_id: str | None = None, eval_id: str | None = None, running: bool = False
    ) -> list[EpisodeRow]:
        """Episodes, oldest first: all, of a group, of an evaluation (`""`: of the training)."""
        return self._read(read.episodes, group_id, eval_id, running)

    def steps(self, state: str | None = None) -> list[StepRow]:
        """Steps with their batches, in order; `planned` are those still to be taken."""
        return self._read(read.steps, state)

    def versions(self) -> list[PolicyVersion]:
        """Versions in the order in which they were published."""
        return self._read(read.versions)

    def faults(self) -> list[Fault]:
        """Faults in the order in which they were written."""
        return self._read(read.faults)

    def evals(self, eval_id: str | None = None) -> list[EvalRow]:
        """Evaluations in order of their start."""
        return self._read(read.evals, eval_id)

    def spans(self, lane: str | None = None) -> list[Span]:
        """Busy intervals, by start."""
        return self._read(read.spans, lane)

    def sessions(self) -> list[tuple[float, float | None]]:
        """When controllers owned the run: start, and end where it has ended."""
        rows = self.query("SELECT started_at, ended_at FROM sessions ORDER BY session")
        return [(row[0], row[1]) for row in rows]

    def query(self, sql: str, *values: object) -> list[Any]:
        """Rows of one SELECT, for reports."""
        return self._read(lambda db: list(db.execute(sql, values)))

    def _read(
        self,
        reader: Callable[Concatenate[sqlite3.Connection, P], T],
        *values: P.args,
        **named: P.kwargs,
    ) -> T:
        with self._lock, named_errors(self.path):
            return reader(self._connection, *values, **named)

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        if not self._write:
            raise ValueError(f"{self.path}: open for reading only")
        db = self._connection
        with self._lock, named_errors(self.path):
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except sqlite3.IntegrityError as e:
                raise ValueError(f"{self.path}: contradicts what is written: {e}") from e
            finally:
                # SQLite has rolled back by itself after some errors, a full disk among them.
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _begin_session(self) -> int:
        with self._transaction() as db:
            # A controller that was killed could not write when it ended: the last event did.
            db.execute(
                "UPDATE sessions SET ended_at = max(started_at, ?) WHERE ended_at IS NULL",
                (read.last_moment(db, before_session=None),),
            )
            begun = db.execute(
                "INSERT INTO sessions (pid, started_at) VALUES (?, ?)", (os.getpid(), self._clock())
            )
        return int(begun.lastrowid or 0)

    @staticmethod
    def _move(
        db: sqlite3.Connection,
        group_id: str,
        before: tuple[GroupState, ...],
        after: GroupState,
        *,
        trainable: bool = False,
    ) -> None:
        row = db.execute(
            "SELECT state, eval_id FROM groups WHERE group_id = ?", (group_id,)
        ).fetchone()
        if row is None or row[0] not in before or (trainable and row[1] is not None):
            state = row and (row[0] if row[0] not in before else "an evaluation's")
            raise ValueError(f"group {group_id} is {state or 'unknown'}, cannot become {after}")
        db.execute("UPDATE groups SET state = ? WHERE group_id = ?", (after, group_id))


def _end_values(episode: Episode) -> dict[str, object]:
    """The columns that an episode's end fills."""
    results = [call.result for call in episode.calls]
    versions = [v for s in episode.segments for v in s.versions if v >= 0]
    versions = versions or [v for r in results for v in r.versions]
    return {
        "outcome": episode.end.value,
        "reward": episode.reward.value,
        "formula": episode.reward.formula,
        "signals": json.dumps({s.name: s.value for s in episode.signals}),
        "calls": len(episode.calls),
        "segments": len(episode.segments),
        "prompt_tokens": sum(len(call.prompt_ids) for call in episode.calls),
        "cached_tokens": sum(r.cached_tokens for r in results),
        "sampled_tokens": sum(len(r.token_ids) for r in results),
        "version_min": min(versions, default=-1),
        "version_max": max(versions, default=-1),
        "wall_s": episode.wall_s,
        "timings": json.dumps(episode.timings),
        "note": episode.note,
    }


def _fault_in_note(episode: Episode, at: float) -> Fault:
    name, _, cause = episode.note.partition(": ")
    boundary = name.removesuffix("Error").lower() if name.endswith("Error") else "unknown"
    first_line = (cause if boundary != "unknown" else episode.note).partition("\n")[0]
    return Fault(boundary=boundary, cause=first_line, at=at, episode_id=episode.episode_id)


def _insert_fault(db: sqlite3.Connection, fault: Fault, episode_id: str) -> None:
    db.execute(
        "INSERT INTO faults (boundary, cause, at, episode_id) VALUES (?, ?, ?, ?)",
        (fault.boundary, fault.cause, fault.at, episode_id),
    )
