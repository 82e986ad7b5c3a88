"""`insitu tasks build`: the recipe's section → the builder."""

from pathlib import Path

from rich.console import Console

from insitu.config.tree import Config
from insitu.tasks.build import BuildSpec, build_taskset
from insitu.tasks.report import BuildReport
from insitu.tasks.source import PackageSpec


def run_build(config: Config, *, console: Console | None = None) -> BuildReport:
    """Build the set that `[build]` describes, or complete it.

    Raises:
        TaskError: a package cannot be used, or nothing could be built.
    """
    section = config.build
    spec = BuildSpec(
        folder=Path(section.out),
        packages=tuple(PackageSpec(**package.model_dump()) for package in section.packages),
        count=section.tasks,
        rl_count=None if section.rl_tasks < 0 else section.rl_tasks,
        candidates=section.candidates,
        apart_from=tuple(Path(folder) for folder in section.apart_from),
        per_function=section.per_function,
        tries=section.tries,
        fewest_edits=section.fewest_edits,
        most_tests=section.most_tests,
        workers=section.workers,
        seed=config.run.seed,
        keep_going=section.keep_going,
    )
    return build_taskset(spec, console)
