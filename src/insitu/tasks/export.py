"""What a built set knows of its tasks, for `known`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from insitu.kit.codec import from_json
from insitu.tasks.known import KnownWork, known_package, known_work
from insitu.tasks.read import read_record, read_taskset
from insitu.tasks.record import TaskRecord
from insitu.tasks.runner import LocalProcess
from insitu.tasks.source import PackageSpec, SourceTree
from insitu.tasks.stages import LegalKinds, Lines, Package, known_validations
from insitu.tasks.survey import Survey
from insitu.tasks.trials import Trial
from insitu.types import TaskError


def export_known(folder: Path) -> KnownWork:
    """What the tasks of the set in `folder` need to be built again.

    Raises:
        TaskError: it is no set, or its `work` folder lacks what its tasks came from.
    """
    tasks = read_taskset(folder)
    records = [read_record(folder / "tasks" / task.task_id) for task in tasks]
    report = _json(folder / "report.json")
    if "plan" not in report:
        raise TaskError(f"{folder} is of an earlier version", remedy="build the set again")
    envs = {r.base: r.env for r in records}
    # A package without tasks is known as well, so that it is not tried again in vain.
    names = [p["source"] for p in report["packages"] if not p["problem"]]
    packages = {name: _package(folder, name, envs) for name in names}
    trials = {t.key: t for name in names for t in _trials(folder, name)}
    candidates = records[0].outcomes_run
    validations = known_validations(
        folder, packages.values(), trials.values(), candidates=candidates
    )
    kinds = {name: LegalKinds(folder, package) for name, package in packages.items()}
    missing = [r.task_id for r in records if not {_key(r)} <= trials.keys() & validations.keys()]
    if missing:
        raise TaskError(
            f"{folder}/work lacks the trials of {len(missing)} tasks, e.g. {missing[0]}",
            remedy="build the set again",
        )
    chosen = [trials[_key(r)] for r in records]
    return known_work(
        report["plan"],
        report["wanted"],
        [known_package(p.source, p.env, p.spec, p.survey) for p in packages.values()],
        [(t, kinds[t.base].of(t), validations[t.key]) for t in chosen],
    )


def _key(record: TaskRecord) -> str:
    return record.task_id.rsplit("-", 1)[-1]


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise TaskError(f"{path} is missing", remedy="build the set again")
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def _package(folder: Path, name: str, envs: Mapping[str, str]) -> Package:
    source = from_json(SourceTree, (folder / "bases" / f"{name}.json").read_bytes())
    kept = _json(folder / "work" / name / "survey.json")
    _, env, skip_tests, allow_failing = json.loads(kept["question"])
    return Package(
        spec=PackageSpec(
            source=name, skip_tests=tuple(skip_tests), allow_failing=bool(allow_failing)
        ),
        source=source,
        base=folder / "bases" / name,
        env=folder / "envs" / envs.get(name, env),
        survey=from_json(Survey, kept["survey"]),
        targets=(),
        start=LocalProcess,
    )


def _trials(folder: Path, name: str) -> Iterator[Trial]:
    for line in Lines(folder / "work" / name / "trials.jsonl").read():
        yield from (from_json(Trial, t) for t in json.loads(line["trials"]))
