"""The folder that lays a task's bug over its intact source tree."""

import os
from pathlib import Path

from insitu.kit.atomic import atomic_folder
from insitu.tasks.layout import read_source
from insitu.tasks.mutate import apply_edit
from insitu.tasks.record import TaskRecord
from insitu.types import TaskError


def bug_layer(taskset: Path, record: TaskRecord) -> Path:
    """A folder that holds just the broken file; made on first use, then reused.

    Raises:
        TaskError: the base is gone or has changed.
    """
    layer = taskset / "layers" / f"{record.task_id}-{record.digest[:12]}"
    if not layer.is_dir():
        original = taskset / "bases" / record.base / record.path
        if not original.is_file():
            raise TaskError(
                f"{record.task_id}: {record.path} is not in its base {record.base}",
                remedy="build the task set again",
            )
        broken = apply_edit(read_source(original), record.bug)
        info = original.stat()
        with atomic_folder(layer) as folder:
            place = folder / record.path
            place.parent.mkdir(parents=True)
            place.write_text(broken, encoding="utf-8", newline="")
            place.chmod(info.st_mode & 0o777)
            # The time of the original: a newer file would give the bug's place away.
            os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
            for parent in place.relative_to(folder).parents:
                like = taskset / "bases" / record.base / parent
                os.utime(folder / parent, ns=(like.stat().st_atime_ns, like.stat().st_mtime_ns))
    return layer
