"""The verbs that make weights: `demo`, `midtrain`, `rl`."""

from typing import Annotated

import typer

from insitu.cli.boundary import guarded
from insitu.cli.options import Overrides, Recipe, read_recipe


@guarded(resume="--resume")
def rl_verb(
    recipe: Recipe,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run where it was left.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Train a policy by RL inside a product.

    \b
    Example:
      insitu rl recipes/demo/rl.toml --set rl.steps=10
      insitu rl recipes/demo/rl.toml --resume
    """
    config = read_recipe(recipe, overrides)
    from insitu.cli.progress import Bar
    from insitu.flows.rl import run_rl

    with Bar() as progress:
        folder = run_rl(config, resume=resume, progress=progress)
    typer.echo(f"done: {folder.path}; see it with: insitu report {folder.path}")


@guarded(resume="")
def midtrain_verb(recipe: Recipe, overrides: Overrides = None) -> None:
    """Train a model on code and transcripts.

    It goes on where it was left.

    \b
    Example:
      insitu midtrain recipes/midtrain-folder.toml
      insitu midtrain recipes/midtrain-folder.toml --set midtrain.max_tokens=1_000_000
    """
    config = read_recipe(recipe, overrides)
    from insitu.cli.progress import Bar
    from insitu.flows.midtrain import run_midtrain

    result = run_midtrain(config, reading=Bar())
    typer.echo(
        f"done: {result.model}: {result.tokens:,} tokens in {result.steps} steps, "
        f"{result.wall_s:.0f} s, loss {result.loss:.3f}"
    )
    for name, nats in result.held_out.items():
        typer.echo(f"  {name}: {nats:.3f} nats per token")


@guarded(resume="")
def demo_verb(overrides: Overrides = None) -> None:
    """Run the whole loop on this machine.

    Evaluates on held-out tasks, trains by RL, evaluates again and reports. What an earlier
    demo left is reused.

    \b
    Example:
      insitu demo
    """
    from rich.console import Console

    from insitu.cli.progress import Bar
    from insitu.flows.demo import prepare_demo, run_demo

    # The builder draws its own progress, so it runs before the bar.
    console = Console(stderr=True)
    prepare_demo(console=console if console.is_terminal else None)
    with Bar() as progress:
        lines = run_demo(overrides or (), progress=progress)
    for line in lines:
        typer.echo(line)
