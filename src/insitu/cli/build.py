"""`insitu tasks`: task sets from real packages."""

from pathlib import Path
from typing import Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import Overrides, read_recipe

app = typer.Typer(
    help="Make task sets.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _root() -> None:
    """Make task sets."""


@app.command("build")
@guarded(resume="")
def build_verb(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|PACKAGE...",
            help="One recipe with a [build] section; or packages, archives, folders.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", help="Folder of the task set; with packages.")
    ] = "tasks",
    overrides: Overrides = None,
) -> None:
    """Build tasks by injecting bugs into packages that carry their own tests.

    \b
    Example:
      insitu tasks build toolz==1.0.0 more-itertools --out tasks/train --set build.tasks=200
      insitu tasks build recipes/demo/tasks-train.toml
    """
    from insitu.config.load import load_values

    if len(sources) == 1 and sources[0].endswith(".toml"):
        config = read_recipe(Path(sources[0]), overrides)
    else:
        packages = [{"source": source} for source in sources]
        tables = {"build": {"out": out, "packages": packages}}
        config = load_values(tables, overrides or (), source="command line")
    config.require("build.out", "build.packages")
    from rich.console import Console

    from insitu.flows.build import run_build

    report = run_build(config, console=Console(stderr=True))
    Console().print(report.table())
