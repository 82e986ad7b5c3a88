"""`insitu runs` and `insitu report`: what is in run folders."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import RunPath

if TYPE_CHECKING:
    from insitu.ledger.run_folder import RunFolder


@guarded()
def runs_verb(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs lie.")] = Path(
        "runs"
    ),
) -> None:
    """List runs, the youngest first.

    \b
    Example:
      insitu runs
    """
    from rich.console import Console
    from rich.table import Table

    from insitu.ledger.run_folder import list_runs

    found = list_runs(folder)
    if not found:
        typer.echo(f"no runs in {folder}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "state", "steps", "episodes", "reward", "faults"):
        table.add_column(heading, overflow="fold")
    for run in found:
        table.add_row(*_row(run))
    Console().print(table)


@guarded()
def report_verb(run: RunPath) -> None:
    """Say how a run went, and write its report.

    \b
    Example:
      insitu report runs/demo
    """
    from insitu.ledger.run_folder import RunFolder

    RunFolder.open(run)
    from rich.console import Console

    from insitu.flows.report import run_report

    page = run_report(run, console=Console())
    typer.echo(f"report: {page}")


def _row(run: "RunFolder") -> tuple[str, ...]:
    from insitu.ledger.ledger import Ledger
    from insitu.ledger.summary import step_table
    from insitu.types import UsageError

    owner = run.owner()
    state = f"runs (process {owner})" if owner else "at rest"
    if not run.ledger.exists():
        return (run.name, state, *_midtraining(run.path / "metrics.jsonl"), "")
    try:
        with Ledger(run.ledger) as ledger:
            steps = step_table(ledger)
            episodes = len(ledger.episodes())
            faults = len(ledger.faults())
    except UsageError as e:
        return (run.name, str(e), "", "", "", "")
    reward = f"{steps[0].reward:.3f} → {steps[-1].reward:.3f}" if steps else ""
    return (run.name, state, str(len(steps)), str(episodes), reward, str(faults))


def _midtraining(metrics: Path) -> tuple[str, str, str]:
    """Steps, nothing, and the loss of a run without episodes."""
    import json

    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    # A kill may have cut the last line off.
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    if not rows:
        return ("0", "", "")
    return (str(rows[-1]["step"]), "", f"loss {rows[0]['loss']:.3f} → {rows[-1]['loss']:.3f}")
