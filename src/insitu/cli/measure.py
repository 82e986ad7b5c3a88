"""`insitu eval`: how good a policy is on held-out tasks."""

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import Overrides, Recipe, read_recipe


@guarded(resume="")
def eval_verb(recipe: Recipe, overrides: Overrides = None) -> None:
    """Evaluate a policy on held-out tasks.

    Beside it stand the baselines without a model.

    \b
    Example:
      insitu eval recipes/demo/rl.toml --set policy.model=models/pocket --set eval.attempts=4
    """
    config = read_recipe(recipe, overrides)
    from insitu.cli.progress import Bar
    from insitu.flows.evaluate import run_eval

    with Bar() as progress:
        lines = run_eval(config, progress=progress)
    for line in lines:
        typer.echo(line)
