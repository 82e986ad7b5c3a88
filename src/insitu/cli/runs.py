"""`insitu runs` and `insitu report`: what is in run folders."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import RunPath

if TYPE_CHECKING:
    from insitu.ledger.ledger import Ledger
    from insitu.ledger.run_folder import RunFolder


@guarded()
def list_all(
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
def report(run: RunPath) -> None:
    """Say how a run went, and where its report lies.

    \b
    Example:
      insitu report runs/demo
    """
    from insitu.ledger.ledger import Ledger
    from insitu.ledger.run_folder import RunFolder

    folder = RunFolder.open(run)
    with Ledger(folder.ledger) as ledger:
        for line in _lines(ledger):
            typer.echo(line)
    page = folder.report / "index.html"
    if page.is_file():
        typer.echo(f"report: {page}")


def _row(run: "RunFolder") -> tuple[str, ...]:
    from insitu.ledger.ledger import Ledger
    from insitu.ledger.summary import step_table
    from insitu.types import UsageError

    owner = run.owner()
    state = f"runs (process {owner})" if owner else "at rest"
    try:
        with Ledger(run.ledger) as ledger:
            steps = step_table(ledger)
            episodes = len(ledger.episodes())
            faults = len(ledger.faults())
    except UsageError as e:
        return (run.name, str(e), "", "", "", "")
    reward = f"{steps[0].reward:.3f} → {steps[-1].reward:.3f}" if steps else ""
    return (run.name, state, str(len(steps)), str(episodes), reward, str(faults))


def _lines(ledger: "Ledger") -> list[str]:
    from insitu.ledger import summary

    steps = summary.step_table(ledger)
    lines = [
        f"steps: {len(steps)}",
        f"episodes: {len(ledger.episodes())}, lost: {summary.lost_episodes(ledger)}",
        f"overlap of rollout and training: {summary.overlap_fraction(ledger):.1%}",
        f"ends: {_counts(summary.ends_by_kind(ledger))}",
        f"discarded groups: {_counts(summary.discards_by_reason(ledger))}",
    ]
    faults = {f"{b}: {c}": n for (b, c), n in summary.faults_by_cause(ledger).items()}
    lines.append(f"faults: {_counts(faults)}")
    lines += [
        f"  step {s.step}: reward {s.reward:.3f}, loss {s.loss:.4f}, {s.wall_s:.1f} s"
        for s in steps[:: max(1, len(steps) // 10)]
    ]
    lines += [f"evaluation {e.label or e.eval_id}: {e.result or 'runs'}" for e in ledger.evals()]
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"
