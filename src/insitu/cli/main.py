"""The `insitu` command. Each verb: parse, config, flow, print.

This module and the modules of verbs import nothing heavy: a verb imports its flow when it runs.
"""

from typing import Annotated

import typer

from insitu import __version__
from insitu.cli import build, configure, doctor, learn, measure, runs

app = typer.Typer(
    name="insitu",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: drawing it with rich would double the time that `insitu --help` takes.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version)
    ] = False,
) -> None:
    """Train an open-weights model into the coding-agent model of one product.

    \b
    Example:
      insitu doctor
      insitu demo
    """


app.command("demo")(learn.demo)
app.command("doctor")(doctor.doctor)
app.command("midtrain")(learn.midtrain)
app.command("rl")(learn.rl)
app.command("eval")(measure.evaluate)
app.command("report")(runs.report)
app.command("runs")(runs.list_all)
app.add_typer(configure.app, name="config")
app.add_typer(build.app, name="tasks")


def main() -> None:
    """Entry point of the `insitu` script."""
    app()
