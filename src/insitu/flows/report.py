"""`insitu report`: a run's folder → its report, while the run goes on or after it."""

from pathlib import Path

from rich.console import Console

from insitu.config.load import load
from insitu.config.tree import Config
from insitu.evaluate.baselines import Baseline
from insitu.flows.reporting import baselines_of, report, report_data
from insitu.flows.runs import read_tasks
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.types import UsageError


def run_report(path: Path, *, console: Console | None) -> Path:
    """Write the report of the run at `path`, print its short form, and return the page's path.

    Raises:
        UsageError: there is no run.
        CorruptError: its ledger or an episode's file is damaged.
    """
    folder = RunFolder.open(path)
    if not folder.ledger.exists() and (folder.path / "sets").is_dir():
        raise UsageError(
            f"{path}: mid-training has no episodes to report",
            remedy="read its metrics.jsonl and result.json",
        )
    config = load(folder.config)
    with Ledger(folder.ledger) as ledger:
        data = report_data(folder, ledger, seed=config.run.seed, baselines=_baselines(config))
    return report(data, folder, console)


def _baselines(config: Config) -> tuple[Baseline, ...]:
    """Those on the run's held-out tasks; none where the sets are no longer where they were."""
    sets = (config.tasks.train, config.tasks.heldout)
    if not config.eval.baselines or not all(folder and Path(folder).is_dir() for folder in sets):
        return ()
    return baselines_of(
        read_tasks(config.tasks.train, key="tasks.train"),
        read_tasks(config.tasks.heldout, key="tasks.heldout", limit=config.eval.limit),
        tries=config.eval.baseline_tries,
        seed=config.run.seed,
    )
