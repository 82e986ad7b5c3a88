"""Build a task set from packages: fetch, survey, break, choose, validate, write."""

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from insitu.kit.digest import digest_bytes
from insitu.kit.log import get_log
from insitu.tasks.bench import time_limit
from insitu.tasks.confine import SandboxHost
from insitu.tasks.fingerprint import fingerprints
from insitu.tasks.folder import task_files, write_task
from insitu.tasks.known import Recall, read_known
from insitu.tasks.leaks import functions_of
from insitu.tasks.mutate import apply_edit, reverse
from insitu.tasks.record import TaskRecord
from insitu.tasks.report import BuildReport, PackageReport, figures
from insitu.tasks.runner import LocalProcess, Start
from insitu.tasks.select import choose, unevenness
from insitu.tasks.source import PackageSpec
from insitu.tasks.stages import (
    LegalKinds,
    Package,
    TrialPlan,
    complete,
    known_validations,
    prepare,
    trial_jobs,
    validation_jobs,
)
from insitu.tasks.trials import Counts, Trial
from insitu.tasks.validate import Validation
from insitu.types import TaskError

T = TypeVar("T")
_log = get_log("tasks")
_ROUNDS = 12
_COLD_START_S = 10.0
"""What a verifier may need besides the tests: a fresh sandbox, a cold interpreter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSpec:
    """What to build.

    Example: `BuildSpec(folder=Path("sets/train"), packages=(PackageSpec(source="toolz"),),
    count=400)`.
    """

    folder: Path
    packages: tuple[PackageSpec, ...]
    count: int
    """Tasks wanted; fewer are built where balance or the packages do not give them."""
    rl_count: int | None = None
    """How many are marked `rl`, the best balanced first; the others are marked `sft`. None: all."""
    candidates: bool = False
    """A held-out set: run every legal edit of each broken function, and mark the tasks `eval`."""
    apart_from: tuple[Path, ...] = ()
    """Other task sets: a function that stands in one of their source trees is not used."""
    per_function: int = 3
    tries: int = 8
    """Bugs tried per function."""
    fewest_edits: int = 12
    """Functions with fewer legal edits are not used."""
    most_tests: int = 12
    """Tests that judge one function, at most."""
    workers: int = 0
    """Worker processes; 0: one per core."""
    seed: int = 0
    sandbox: str = "bubblewrap"
    """Back-end in which the packages' code runs; empty runs it as plain processes."""
    keep_going: bool = False
    """Leave out packages that cannot be used, and report them, instead of refusing the build."""
    pins: tuple[str, ...] = ()
    """Versions of what gets installed beside the packages, e.g. `("pytest==9.0.0",)`."""
    known: Path | None = None
    """File of work that is known already (see `known`); what does not fit is tried anew."""

    @property
    def plan(self) -> str:
        """The settings on which the choice depends, besides packages and count."""
        names = ("per_function", "tries", "fewest_edits", "most_tests", "seed", "candidates")
        return " ".join(f"{name}={getattr(self, name)}" for name in names)


def build_taskset(spec: BuildSpec, console: Console | None = None) -> BuildReport:
    """Build or complete the set in `spec.folder`; finished work is kept and reused.

    Args:
        spec: what to build.
        console: where progress is shown; None shows none.

    Raises:
        TaskError: a package cannot be used (unless `keep_going`), or nothing could be built.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        start: Start = LocalProcess
        if spec.sandbox:
            start = stack.enter_context(SandboxHost(spec.sandbox)).start
        build = _Build(spec, console or Console(quiet=True), start)
        stack.enter_context(build.progress)
        packages, failed = build.prepare()
        pool, forbidden = build.trials(packages)
        legal = build.legal(packages, pool)
        chosen, validations, rejected = build.choose(packages, pool, legal)
        records, written = build.write(packages, chosen, validations)
    if not records:
        raise TaskError(
            f"no task could be built in {spec.folder}: {dict(rejected)}",
            remedy="give more packages or more tries",
        )
    wall = time.monotonic() - started
    rejected.update(Counter(t.status for t in pool if t.status != "killed"))
    rejected["stands in another set"] += len(forbidden)
    report = BuildReport(
        folder=str(spec.folder),
        wanted=spec.count,
        built=len(records),
        written=written,
        wall_s=round(wall, 1),
        per_minute=round(60 * written / wall, 1),
        packages=(*(_package_report(p, pool, records) for p in packages), *failed),
        rejected=dict(rejected),
        unevenness=unevenness(chosen, legal),
        plan=spec.plan,
        **_figures(records),
    )
    report.save(spec.folder / "report.json")
    return report


def _figures(records: Sequence[TaskRecord]) -> dict[str, Any]:
    return figures(records)


def _package_report(
    package: Package, pool: Sequence[Trial], records: Sequence[TaskRecord]
) -> PackageReport:
    name = package.source.base
    return PackageReport(
        source=name,
        licence=package.source.licence,
        tests=len(package.survey.tests),
        left_out=package.survey.left_out,
        named=package.survey.named,
        functions=len(package.targets),
        trials=dict(Counter(t.status for t in pool if t.base == name)),
        tasks=sum(r.base == name for r in records),
    )


class _Build:
    """The stages of one build, with its progress display and its pool of workers."""

    def __init__(self, spec: BuildSpec, console: Console, start: Start) -> None:
        self.spec = spec
        self.start = start
        known = read_known(spec.known) if spec.known else None
        self.recall = Recall(known, plan=spec.plan, count=spec.count)
        self.workers = spec.workers or os.cpu_count() or 1
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )

    def _all(self, title: str, total: int, jobs: Sequence[Callable[[], T]]) -> list[T]:
        bar = self.progress.add_task(title, total=total)
        self._bar = bar
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            futures = [pool.submit(job) for job in jobs]
            try:
                return [f.result() for f in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _tick(self, count: int) -> None:
        self.progress.advance(self._bar, count)

    def prepare(self) -> tuple[list[Package], list[PackageReport]]:
        """Fetch and survey; packages that fail are reported or refused."""
        spec = self.spec

        def job(one: PackageSpec) -> Package | PackageReport:
            try:
                return prepare(
                    spec.folder,
                    one,
                    most_tests=spec.most_tests,
                    start=self.start,
                    recall=self.recall,
                    pins=spec.pins,
                )
            except TaskError as error:
                if not spec.keep_going:
                    raise
                _log.warning("left out: %s", error)
                return PackageReport(source=one.source, problem=str(error))
            finally:
                self._tick(1)

        jobs = [lambda p=p: job(p) for p in spec.packages]
        done = self._all("packages", len(jobs), jobs)
        good = [p for p in done if isinstance(p, Package)]
        if not good:
            raise TaskError(
                "none of the packages can be used", remedy="see the warnings for the reasons"
            )
        return good, [p for p in done if isinstance(p, PackageReport)]

    def trials(self, packages: Sequence[Package]) -> tuple[list[Trial], list[str]]:
        """Break every function in a few ways."""
        forbidden = self._forbidden(packages)
        plan = TrialPlan(
            tries=self.spec.tries,
            fewest=self.spec.fewest_edits,
            seed=self.spec.seed,
            forbidden=frozenset(forbidden),
        )
        pool: list[Trial] = []
        left = 0
        jobs: list[Callable[[], list[Trial]]] = []
        for package in packages:
            recalled = self.recall.trials(package.source.base)
            if recalled is not None:
                pool += recalled
                continue
            known, count, rest = trial_jobs(
                self.spec.folder, package, plan, self._tick, workers=self.workers
            )
            pool += known
            left += count
            jobs += rest
        if pool:
            _log.info("%d trials reused", len(pool))
        for found in self._all("functions", left, jobs) if jobs else ():
            pool += found
        pool = [t for t in pool if (t.base, t.path, t.qualname) not in forbidden]
        return pool, [":".join(f) for f in forbidden]

    def _forbidden(self, packages: Sequence[Package]) -> set[tuple[str, str, str]]:
        others = functions_of(p / "bases" for p in self.spec.apart_from)
        if not others:
            return set()
        return {
            (package.source.base, path, name)
            for package in packages
            for path in sorted({t.path for t in package.targets})
            for (name, _), digest in fingerprints(package.text(path)).items()
            if digest in others
        }

    def legal(
        self, packages: Sequence[Package], pool: Sequence[Trial]
    ) -> Callable[[Trial], Counts]:
        """The legal edits of a bug's intact function by kind, all known before it returns."""
        kinds = {
            p.source.base: LegalKinds(self.spec.folder, p, self.recall.legal(p.source.base))
            for p in packages
        }
        killed = [t for t in pool if t.status == "killed"]
        bar = self.progress.add_task("legal edits", total=len(killed))
        for trial in killed:
            kinds[trial.base].of(trial)
            self.progress.advance(bar)
        return lambda trial: kinds[trial.base].of(trial)

    def choose(
        self,
        packages: Sequence[Package],
        pool: Sequence[Trial],
        legal: Callable[[Trial], Counts],
    ) -> tuple[list[Trial], dict[str, Validation], Counter[str]]:
        """Choose and validate in turn until the whole choice is sound."""
        spec = self.spec
        by_name = {p.source.base: p for p in packages}
        known = known_validations(spec.folder, packages, pool, candidates=spec.candidates)
        known |= self.recall.validations()
        sound = {key: v for key, v in known.items() if not v.problem}
        unsound = {key: v for key, v in known.items() if v.problem}
        chosen: list[Trial] = []
        for _ in range(_ROUNDS):
            chosen = choose(
                [t for t in pool if t.key not in unsound],
                legal,
                count=spec.count,
                per_function=spec.per_function,
                seed=spec.seed,
                sound=sound.keys(),
            )
            rest = [t for t in chosen if t.key not in sound]
            if not rest:
                break
            jobs = validation_jobs(
                spec.folder,
                by_name,
                rest,
                self._tick,
                candidates=spec.candidates,
                workers=self.workers,
            )
            for group in self._all("validate", len(rest), jobs):
                sound |= {v.key: v for v in group if not v.problem}
                unsound |= {v.key: v for v in group if v.problem}
        chosen = [t for t in chosen if t.key in sound]
        for t in chosen:
            if not sound[t.key].candidates:
                sound[t.key] = complete(spec.folder, by_name[t.base], t, sound[t.key])
        return chosen, sound, Counter(v.problem for v in unsound.values())

    def write(
        self,
        packages: Sequence[Package],
        chosen: Sequence[Trial],
        validations: dict[str, Validation],
    ) -> tuple[list[TaskRecord], int]:
        """Write the chosen tasks, keep those that are there, remove those no longer chosen."""
        by_name = {p.source.base: p for p in packages}
        folder = self.spec.folder / "tasks"
        records, written = [], 0
        for order, trial in enumerate(chosen):
            package = by_name[trial.base]
            record = self._record(order, trial, package, validations[trial.key])
            records.append(record)
            intact = package.text(trial.path)
            files = task_files(
                record,
                intact=intact,
                broken=apply_edit(intact, trial.edit),
                source=f"{package.source.name}=={package.source.version}",
                requires=package.source.requires,
            )
            written += write_task(folder / record.task_id, files)
        keep = {r.task_id for r in records}
        for place in folder.iterdir() if folder.is_dir() else ():
            if place.name not in keep:
                shutil.rmtree(place)
        return records, written

    def _record(self, order: int, trial: Trial, package: Package, v: Validation) -> TaskRecord:
        spec, source = self.spec, package.source
        marked = spec.rl_count is None or order < spec.rl_count
        record = TaskRecord(
            task_id=f"{source.name}-{_plain(trial.qualname)}-{trial.key}",
            base=source.base,
            env=package.env.name,
            workdir=f"/home/dev/{source.name}",
            import_root=source.import_root,
            path=trial.path,
            qualname=trial.qualname,
            first_line=trial.first_line,
            last_line=trial.last_line,
            bug=trial.edit,
            fix=reverse(trial.edit),
            family=trial.family,
            helpful=trial.helpful,
            use="eval" if spec.candidates else "rl" if marked else "sft",
            order=order,
            fail_to_pass=v.fail_to_pass,
            pass_to_pass=v.pass_to_pass,
            error=trial.error,
            legal_edits=v.legal_edits,
            verifier_timeout_s=round(_COLD_START_S + 2 * time_limit(trial.base_s), 1),
            licence=source.licence,
            digest="",
            candidates=v.candidates,
            outcomes_run=spec.candidates,
        )
        parts = (source.digest, package.env.name, str(trial.edit), *v.fail_to_pass, *v.pass_to_pass)
        return replace(record, digest=digest_bytes(*(p.encode() for p in parts)))


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "-" for c in name).strip("-_").lower() or "f"
