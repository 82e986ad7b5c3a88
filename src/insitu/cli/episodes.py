"""`insitu episodes`: one episode of a run, for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import RunPath

app = typer.Typer(
    help="Export episodes.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _root() -> None:
    """Export episodes."""


@app.command("atif")
@guarded()
def atif_verb(
    run: RunPath,
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Its name, e.g. g000000-0.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Without one: print it.")
    ] = None,
) -> None:
    """Write an episode as an ATIF trajectory, with its exact tokens.

    \b
    Example:
      insitu episodes atif runs/demo g000000-0 --out episode.json
    """
    import json

    from insitu.flows.episodes import episode_atif
    from insitu.kit.atomic import write_atomic

    text = json.dumps(episode_atif(run, episode), indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
    else:
        write_atomic(out, text + "\n")
        typer.echo(f"written: {out}")
