"""Arguments that several verbs share, and the recipe they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from insitu.config.tree import Config

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file; see recipes/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. rl.group_size=16."),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, e.g. runs/demo.")]


def read_recipe(recipe: Path, overrides: list[str] | None) -> "Config":
    """The recipe with its overrides.

    Raises:
        ConfigError: see `insitu.config.load`.
    """
    from insitu.config.load import load
    from insitu.kit.log import setup_log

    config = load(recipe, overrides or ())
    setup_log(level=config.run.log_level)
    return config
