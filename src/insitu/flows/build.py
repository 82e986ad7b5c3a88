"""`insitu tasks build`: the recipe's section → the builder."""

from pathlib import Path

from rich.console import Console

from insitu.config.tree import Config
from insitu.tasks.build import BuildSpec, build_taskset
from insitu.tasks.export import export_known
from insitu.tasks.known import write_known
from insitu.tasks.report import BuildReport
from insitu.tasks.source import PackageSpec
from insitu.types import TaskError


def run_build(config: Config, *, console: Console | None = None) -> BuildReport:
    """Build the set that `[build]` describes, or complete it.

    Raises:
        TaskError: a package cannot be used, or nothing could be built.
    """
    section = config.build
    for folder in section.apart_from:
        if not Path(folder, "bases").is_dir():
            raise TaskError(
                f"build.apart_from: {folder} is not a task set", remedy="build that one first"
            )
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
        sandbox=config.sandbox.backend,
        keep_going=section.keep_going,
        pins=section.pins,
        known=Path(section.known) if section.known else None,
    )
    return build_taskset(spec, console)


def run_export(taskset: Path, out: Path) -> str:
    """Write what is known of a set's tasks; a line for a person.

    Raises:
        TaskError: it is no set, or its `work` folder lacks what its tasks came from.
    """
    known = export_known(taskset)
    write_known(out, known)
    return f"{out}: {len(known.tasks)} tasks, {out.stat().st_size / 1000:.0f} kB"
