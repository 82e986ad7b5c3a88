"""`insitu config`: the resolved tree."""

from pathlib import Path
from typing import Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import Overrides, read_recipe

app = typer.Typer(
    help="Show configuration.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _root() -> None:
    """Show configuration."""


@app.command("show")
@guarded()
def show_verb(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE]", help="Without one: the defaults.")
    ] = None,
    overrides: Overrides = None,
    describe: Annotated[bool, typer.Option("--describe", help="Say what each key is.")] = False,
) -> None:
    """Print every key with its value, as TOML.

    \b
    Example:
      insitu config show recipes/demo/rl.toml --set rl.group_size=16
      insitu config show --describe
    """
    from insitu.config.tree import Config
    from insitu.config.write import to_toml

    config = read_recipe(recipe, overrides) if recipe else Config()
    typer.echo(to_toml(config, describe=describe), nl=False)
