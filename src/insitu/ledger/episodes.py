"""Episodes as tokens: one parquet file per group, and one per episode while its group is open.

A file is whole or absent, and reading gives back exactly what was written. The columns are those
of `insitu.types.Episode`; calls, segments, changes and signals are lists of structs, so DuckDB
reads them as they are: `SELECT task_id, reward.value, len(calls) FROM 'episodes/*.parquet'`.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from insitu.kit.atomic import write_atomic
from insitu.types import CorruptError, Episode, Group

FORMAT = 1
"""Raised with each change of the columns; kept in each file."""

_FORMAT_KEY = b"insitu_episodes"
_NAME_KEY = b"insitu_group"
_OPEN = "open"

_IDS = pa.list_(pa.int32())
_RESULT = pa.struct(
    [
        ("token_ids", _IDS),
        ("logprobs", pa.list_(pa.float64())),
        ("versions", _IDS),
        ("finish", pa.string()),
        ("cached_tokens", pa.int32()),
        ("queue_s", pa.float64()),
        ("prefill_s", pa.float64()),
        ("decode_s", pa.float64()),
    ]
)
_CALL = pa.struct(
    [
        ("call_id", pa.string()),
        ("episode_id", pa.string()),
        ("index", pa.int32()),
        ("prompt_ids", _IDS),
        ("result", _RESULT),
        ("request", pa.large_string()),
        ("response", pa.large_string()),
        ("extends", pa.string()),
        ("break_cause", pa.string()),
        ("started_at", pa.float64()),
        ("latency_s", pa.float64()),
    ]
)
_SEGMENT = pa.struct(
    [
        ("token_ids", _IDS),
        ("trainable", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float64())),
        ("versions", _IDS),
        ("call_ids", pa.list_(pa.string())),
    ]
)
_CHANGE = pa.struct(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("content", pa.large_binary()),
        ("mode", pa.int32()),
        ("symlink", pa.string()),
    ]
)
_SIGNAL = pa.struct([("name", pa.string()), ("value", pa.float64()), ("evidence", pa.string())])
_EPISODE = pa.schema(
    [
        ("episode_id", pa.string()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("attempt", pa.int32()),
        ("end", pa.string()),
        ("calls", pa.list_(_CALL)),
        ("segments", pa.list_(_SEGMENT)),
        ("changes", pa.list_(_CHANGE)),
        ("signals", pa.list_(_SIGNAL)),
        ("reward", pa.struct([("value", pa.float64()), ("formula", pa.string())])),
        ("started_at", pa.float64()),
        ("wall_s", pa.float64()),
        ("seed", pa.int64()),
        ("note", pa.string()),
        ("timings", pa.map_(pa.string(), pa.float64())),
    ]
)

_ADAPTER: TypeAdapter[list[Episode]] = TypeAdapter(list[Episode])


class EpisodeStore:
    """The folder `episodes/` of a run.

    Example: `store.write_group(group)`, then `store.read_group(group.group_id) == group`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, group_id: str) -> Path:
        """Where the group's file is or will be.

        Raises:
            ValueError: the name cannot be a file's.
        """
        return self._folder / f"{_file_name(group_id)}.parquet"

    def has_group(self, group_id: str) -> bool:
        """Whether the group has been written."""
        return self.path(group_id).is_file()

    def write_episode(self, episode: Episode) -> None:
        """Keep one episode of a group that is still open, so that a killed run does not lose it."""
        path = self._open_folder(episode.group_id) / f"{_file_name(episode.episode_id)}.parquet"
        _write(path, episode.group_id, episode.task_id, (episode,))

    def read_open(self, group_id: str) -> tuple[Episode, ...]:
        """The episodes kept so far of a group that is open, in order of attempt."""
        parts = sorted(self._open_folder(group_id).glob("*.parquet"))
        episodes = [episode for part in parts for episode in _read(part).episodes]
        return tuple(sorted(episodes, key=lambda e: (e.attempt, e.started_at)))

    def write_group(self, group: Group) -> None:
        """Write the group as one file; the files of its single episodes are then removed.

        Raises:
            OSError: the disk is full or not writable; what was there before is untouched.
        """
        _write(self.path(group.group_id), group.group_id, group.task_id, group.episodes)
        self.drop_open(group.group_id)

    def read_group(self, group_id: str) -> Group:
        """Exactly the group that was written.

        Raises:
            CorruptError: the file is missing, damaged or of another format.
        """
        return _read(self.path(group_id))

    def drop_open(self, group_id: str) -> None:
        """Remove the files of single episodes, of a group that was written or discarded."""
        folder = self._open_folder(group_id)
        for part in folder.glob("*"):
            part.unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()

    def sweep(self) -> None:
        """Remove what writers that were killed left half-written."""
        for part in (*self._folder.glob(".*.part"), *self._folder.glob(f"{_OPEN}/*/.*.part")):
            part.unlink(missing_ok=True)

    def _open_folder(self, group_id: str) -> Path:
        return self._folder / _OPEN / _file_name(group_id)


def _file_name(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be a file's name")
    return name


def _write(path: Path, group_id: str, task_id: str, episodes: Sequence[Episode]) -> None:
    columns = {name: [_plain(getattr(e, name)) for e in episodes] for name in _EPISODE.names}
    columns["timings"] = [list(e.timings.items()) for e in episodes]
    name = json.dumps({"group_id": group_id, "task_id": task_id})
    table = pa.table(columns, schema=_EPISODE).replace_schema_metadata(
        {_FORMAT_KEY: str(FORMAT), _NAME_KEY: name}
    )
    buffer = io.BytesIO()
    # Prompts of one episode repeat each other: zstd finds that, dictionaries only get in its way.
    pq.write_table(table, buffer, compression="zstd", compression_level=3, use_dictionary=False)
    write_atomic(path, buffer.getvalue())


def _plain(value: Any) -> Any:
    """The value with dataclasses as dicts; token tuples are not copied."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_plain(item) for item in value]
    return value


def _read(path: Path) -> Group:
    remedy = "restore the file, or discard the group and start from the last checkpoint"
    try:
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        if metadata.get(_FORMAT_KEY) != str(FORMAT).encode():
            raise CorruptError(f"{path}: not an episode file of this insitu", remedy=remedy)
        rows = table.to_pylist()
        for row in rows:
            row["timings"] = dict(row["timings"])
        name = json.loads(metadata[_NAME_KEY])
        return Group(episodes=tuple(_ADAPTER.validate_python(rows)), **name)
    except FileNotFoundError as e:
        raise CorruptError(f"{path}: no such file", remedy=remedy) from e
    except (pa.ArrowException, ValidationError, OSError) as e:
        raise CorruptError(f"{path}: damaged: {e}", remedy=remedy) from e
