"""The `insitu` command. Each verb: parse, config, flow, print.

This module and the modules of verbs import nothing heavy: a verb imports its flow when it runs.
"""

from typing import Annotated

import typer

from insitu import __version__
from insitu.cli import build, configure, doctor, episodes, learn, measure, runs

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
def _root(
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


app.command("demo")(learn.demo_verb)
app.command("doctor")(doctor.doctor_verb)
app.command("midtrain")(learn.midtrain_verb)
app.command("rl")(learn.rl_verb)
app.command("eval")(measure.eval_verb)
app.command("report")(runs.report_verb)
app.command("runs")(runs.runs_verb)
app.add_typer(configure.app, name="config")
app.add_typer(build.app, name="tasks")
app.add_typer(episodes.app, name="episodes")


def main() -> None:
    """Entry point of the `insitu` script."""
    app()
