"""The ledger's tables, how the database is opened, and what its errors mean to a user.

SQLite in WAL mode: readers never wait for the writer, and a process killed at any moment
leaves a database that the next opening brings to its last commit; that holds for
`synchronous=NORMAL` too. It differs from FULL after a power cut only, when the last commits
may be gone. So what a checkpoint may build on is written with FULL (a batch, a step, a group's
readiness, a version): a ledger that had forgotten a planned step would train its groups again on
top of a checkpoint that already contains them. A commit with FULL makes all before it durable.
Starts and ends of episodes are written with NORMAL: at tens per second their fsyncs (8 ms each
on a cloud disk) would hold up the controller, and an episode that is forgotten as a whole costs
only its work.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from insitu.types import CorruptError, UsageError

SCHEMA_VERSION = 1
"""Raised by one with each change of the tables; kept in `PRAGMA user_version`."""

_APPLICATION_ID = 0x1A517001

_TABLES = """
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

CREATE TABLE sessions (
  session INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL
) STRICT;

CREATE TABLE evals (
  eval_id TEXT PRIMARY KEY,
  suite TEXT NOT NULL,
  version INTEGER NOT NULL,
  label TEXT NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  result TEXT
) STRICT;

CREATE TABLE groups (
  group_id TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  size INTEGER NOT NULL CHECK (size > 0),
  eval_id TEXT REFERENCES evals (eval_id),
  state TEXT NOT NULL
    CHECK (state IN ('open', 'ready', 'batched', 'trained', 'discarded')),
  reason TEXT NOT NULL DEFAULT '',
  opened_at REAL NOT NULL,
  ready_at REAL
) STRICT;
CREATE INDEX groups_by_state ON groups (state);

CREATE TABLE episodes (
  episode_id TEXT PRIMARY KEY,
  group_id TEXT NOT NULL REFERENCES groups (group_id),
  task_id TEXT NOT NULL,
  attempt INTEGER NOT NULL CHECK (attempt >= 0),
  seed INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  outcome TEXT,
  reward REAL,
  formula TEXT,
  signals TEXT,
  calls INTEGER,
  segments INTEGER,
  prompt_tokens INTEGER,
  cached_tokens INTEGER,
  sampled_tokens INTEGER,
  version_min INTEGER,
  version_max INTEGER,
  wall_s REAL,
  timings TEXT,
  note TEXT,
  CHECK ((outcome IS NULL) = (ended_at IS NULL))
) STRICT;
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE INDEX episodes_running ON episodes (episode_id) WHERE outcome IS NULL;
-- An attempt counts once: it may fault any number of times, and end otherwise once.
CREATE UNIQUE INDEX episodes_counted ON episodes (group_id, attempt)
  WHERE outcome IS NOT NULL AND outcome <> 'fault';

CREATE TABLE steps (
  number INTEGER PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('planned', 'done')),
  planned_at REAL NOT NULL,
  started_at REAL,
  ended_at REAL,
  version INTEGER,
  report TEXT,
  replays INTEGER NOT NULL DEFAULT 0
) STRICT;

-- `group_id` is the key: no group can be in two batches.
CREATE TABLE batches (
  group_id TEXT PRIMARY KEY REFERENCES groups (group_id),
  step INTEGER NOT NULL REFERENCES steps (number),
  position INTEGER NOT NULL,
  UNIQUE (step, position)
) STRICT;

CREATE TABLE versions (
  number INTEGER NOT NULL,
  digest TEXT NOT NULL,
  path TEXT NOT NULL,
  step INTEGER NOT NULL,
  published_at REAL NOT NULL,
  PRIMARY KEY (number, digest)
) STRICT;

CREATE TABLE faults (
  fault INTEGER PRIMARY KEY,
  boundary TEXT NOT NULL,
  cause TEXT NOT NULL,
  at REAL NOT NULL,
  episode_id TEXT NOT NULL
) STRICT;

CREATE TABLE spans (
  lane TEXT NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL NOT NULL CHECK (ended_at >= started_at),
  tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX spans_by_lane ON spans (lane, started_at);
"""

_REMEDY_DISK = "free some space on the disk, then resume the run"


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open the ledger at `path`; the writer creates it where it is missing.

    Raises:
        UsageError: there is no ledger (reading), or the disk is full or not writable.
        CorruptError: the file is not a ledger, is damaged, or was written by a newer insitu.
    """
    if not write and not path.is_file():
        raise UsageError(f"{path}: no such ledger", remedy="give the folder of a run")
    with named_errors(path):
        connection = _open_writer(path) if write else _open_reader(path)
        try:
            _check(connection, path, write=write)
        except BaseException:
            connection.close()
            raise
    return connection


def _open_writer(path: Path) -> sqlite3.Connection:
    # One connection serves the controller's threads; `Ledger` holds a lock around it.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA busy_timeout = 10000")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    if not _is_empty(connection):
        return  # Some other program's database; `_check` refuses it.
    # One transaction: a process killed here leaves an empty file, which is made again.
    connection.executescript(
        f"BEGIN IMMEDIATE;{_TABLES}"
        f"PRAGMA application_id = {_APPLICATION_ID};"
        f"PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
    )


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return tables == 0


def _open_reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA user_version")
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except sqlite3.OperationalError:
        # A folder that cannot be written has no room for the shared-memory file; nobody can
        # be writing there, so the file may be read as it is.
        connection.close()
        connection = sqlite3.connect(
            f"{uri}&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
    return connection


def _check(connection: sqlite3.Connection, path: Path, *, write: bool) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if not write and not application and _is_empty(connection):
        raise UsageError(f"{path}: the ledger is still empty", remedy="wait until the run starts")
    if application != _APPLICATION_ID:
        raise CorruptError(
            f"{path}: not a ledger of insitu", remedy="give the folder of a run, or start a new run"
        )
    if version != SCHEMA_VERSION:
        raise CorruptError(
            f"{path}: written with ledger format {version}, this insitu reads {SCHEMA_VERSION}",
            remedy="use the insitu that config.toml of the run names",
        )
    if write:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise CorruptError(f"{path}: damaged: {verdict}", remedy=_remedy_copy(path))


def _remedy_copy(path: Path) -> str:
    return f"put back a copy of {path.name}, or start a new run from the last checkpoint"


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into insitu's: what the user can do about it, in one line."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as e:
        name = getattr(e, "sqlite_errorname", "")
        if name == "SQLITE_FULL":
            raise UsageError(f"{path}: the disk is full", remedy=_REMEDY_DISK) from e
        if name.startswith("SQLITE_IOERR"):
            raise UsageError(f"{path}: {e} ({name})", remedy=_REMEDY_DISK) from e
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            raise UsageError(f"{path}: {e}", remedy="make the folder writable") from e
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise UsageError(
                f"{path}: another program holds the ledger", remedy="close it, then resume"
            ) from e
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise CorruptError(f"{path}: damaged: {e}", remedy=_remedy_copy(path)) from e
        raise
