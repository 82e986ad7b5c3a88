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
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Use no known work: try and validate everything here.")
    ] = False,
) -> None:
    """Build tasks by injecting bugs into packages that carry their own tests.

    \b
    Example:
      insitu tasks build toolz==1.0.0 more-itertools --out tasks/train --set build.tasks=200
      insitu tasks build recipes/demo/tasks-train.toml
    """
    from insitu.config.load import load_values

    overrides = [*(overrides or ()), *(['build.known=""'] if fresh else ())]
    if len(sources) == 1 and sources[0].endswith(".toml"):
        config = read_recipe(Path(sources[0]), overrides)
    else:
        packages = [{"source": source} for source in sources]
        tables = {"build": {"out": out, "packages": packages}}
        config = load_values(tables, overrides, source="command line")
    config.require("build.out", "build.packages")
    from rich.console import Console

    from insitu.flows.build import run_build

    console = Console(stderr=True)
    report = run_build(config, console=console if console.is_terminal else None)
    Console().print(report.table())


@app.command("known")
@guarded(resume="")
def known_verb(
    taskset: Annotated[Path, typer.Argument(metavar="SET", help="Folder of a built task set.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.xz", help="File to write.")],
) -> None:
    """Write what a set's tasks came from, so that another machine builds it without trying bugs.

    \b
    Example:
      insitu tasks known tasks/train recipes/known/train.json.xz
    """
    from insitu.flows.build import run_export

    typer.echo(run_export(taskset, out))
