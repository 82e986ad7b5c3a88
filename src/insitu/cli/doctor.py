"""`insitu doctor`: what this machine can run, and what to install for the rest."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from insitu.cli.boundary import guarded

if TYPE_CHECKING:
    from insitu.cli.machine import Finding


@guarded()
def doctor_verb(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what this machine can run. Exit code 1 where the demo cannot run.

    \b
    Example:
      insitu doctor
      insitu doctor --json
    """
    from insitu.cli.machine import findings

    found = findings()
    if as_json:
        typer.echo(json.dumps([asdict(f) for f in found], indent=2))
    else:
        _draw(found)
    if not all(f.works for f in found if f.needed):
        raise typer.Exit(1)


def _draw(found: "list[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "part", "what", "detail"):
        table.add_column(heading, overflow="fold")
    for f in found:
        mark = Text("yes", "green") if f.works else Text("no", "red" if f.needed else "yellow")
        detail = f.detail + (f"; {f.remedy}" if f.remedy else "")
        table.add_row(mark, f.part, f.name, Text(detail))
    console = Console()
    console.print(table)
    missing = [f.name for f in found if f.needed and not f.works]
    console.print(
        f"The demo cannot run here: {', '.join(missing)}." if missing else "The demo can run here."
    )
