"""The steps of a build, each of which leaves a file behind and resumes from it."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from insitu.kit.atomic import write_atomic
from insitu.kit.codec import from_json, to_json
from insitu.tasks.bench import Bench
from insitu.tasks.environment import build_environment
from insitu.tasks.known import Recall
from insitu.tasks.layout import read_source
from insitu.tasks.leaks import sweep_environment, sweep_tree
from insitu.tasks.mutate import candidate_edits
from insitu.tasks.runner import Start, Worker, Workspace
from insitu.tasks.source import PackageSpec, SourceTree, fetch
from insitu.tasks.survey import Survey, Target, survey, targets
from insitu.tasks.trials import Counts, Kind, Trial, count_kinds, try_function
from insitu.tasks.validate import Validation, legal_edits, validate
from insitu.types import Edit, TaskError

_CHUNKS = 3
"""Parts per worker into which a package's work is cut: few, since each starts a process."""
_SMALLEST_CHUNK = 25

T = TypeVar("T")
Tick = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A package that is ready to be broken."""

    spec: PackageSpec
    source: SourceTree
    base: Path
    env: Path
    survey: Survey
    targets: tuple[Target, ...]
    start: Start

    def worker(self) -> Worker:
        """A worker on a copy of its tree."""
        return Worker(workspace(self.source, self.base, self.env), self.start)

    def text(self, path: str) -> str:
        """A file of its tree, line ends untouched."""
        return read_source(self.base / path)


def workspace(source: SourceTree, base: Path, env: Path) -> Workspace:
    """What a worker of the package works on."""
    return Workspace(
        base=base, env=env, import_root=source.import_root, workdir=f"/home/dev/{source.name}"
    )


def prepare(
    folder: Path,
    spec: PackageSpec,
    *,
    most_tests: int,
    start: Start,
    recall: Recall,
    pins: Sequence[str] = (),
) -> Package:
    """Fetch a package, build its environment and run its tests; reuses what is there.

    Args:
        folder: of the task set.
        spec: the package.
        most_tests: that judge one function.
        start: starts the processes in which its code runs.
        recall: known work.
        pins: versions of what gets installed beside it.

    Raises:
        TaskError: the package cannot be used.
    """
    source = fetch(spec, folder / "bases")
    base = folder / "bases" / source.base
    env = build_environment(source, folder / "envs", pins)
    finds = [*sweep_tree(base), *sweep_environment(env, source.packages)]
    if finds:
        raise TaskError(f"{source.base}: a copy of the intact code is in reach: {finds[0]}")
    record = folder / "work" / source.base / "survey.json"
    question = json.dumps([source.digest, env.name, spec.skip_tests, spec.allow_failing])
    found = recall.survey(source, env, spec) or _kept(record, question)
    if found is None:
        with Worker(workspace(source, base, env), start) as worker:
            found = survey(source, spec, base, worker)
        text = json.dumps({"question": question, "survey": to_json(found).decode()})
        write_atomic(record, text)
    places = targets(base, source, found, most_tests=most_tests)
    return Package(
        spec=spec,
        source=source,
        base=base,
        env=env,
        survey=found,
        targets=tuple(places),
        start=start,
    )


def _kept(record: Path, question: str) -> Survey | None:
    if not record.is_file():
        return None
    value = json.loads(record.read_text())
    return from_json(Survey, value["survey"]) if value["question"] == question else None


class Lines:
    """A file of JSON lines that several threads add to. A torn last line is dropped on reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def read(self) -> Iterator[dict[str, str]]:
        """The whole lines."""
        if not self._path.is_file():
            return
        for line in self._path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)

    def add(self, value: dict[str, str]) -> None:
        """Add one line."""
        line = json.dumps(value).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self._path.open("ab+") as f:
            f.seek(0, 2)
            if f.tell():
                f.seek(-1, 2)
                if f.read(1) != b"\n":
                    line = b"\n" + line
            f.write(line)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPlan:
    """How functions are broken."""

    tries: int
    fewest: int
    seed: int
    forbidden: frozenset[tuple[str, str, str]]
    """Base, path and name of functions that stand in another set."""


def trial_jobs(
    folder: Path, package: Package, plan: TrialPlan, tick: Tick, *, workers: int
) -> tuple[list[Trial], int, list[Callable[[], list[Trial]]]]:
    """What is known already, the number of functions left, and the jobs that break those."""
    name = package.source.base
    question = _trial_question(package, plan)
    lines = Lines(folder / "work" / name / "trials.jsonl")
    kinds = LegalKinds(folder, package)
    known: list[Trial] = []
    done = set()
    for line in lines.read():
        if _answers(line.get("question", ""), question):
            done.add((line["path"], line["qualname"]))
            found = [from_json(Trial, t) for t in json.loads(line["trials"])]
            known += [t for t in found if t.candidates >= plan.fewest]
    rest = [
        t
        for t in package.targets
        if (t.path, t.qualname) not in done and (name, t.path, t.qualname) not in plan.forbidden
    ]

    def job(chunk: Sequence[Target]) -> list[Trial]:
        found: list[Trial] = []
        with package.worker() as worker:
            worker.warm(sorted({t.tests[0].split("::")[0] for t in chunk}), run=False)
            for target in chunk:
                edits = kinds.note(target)
                trials = (
                    try_function(
                        name,
                        package.text(target.path),
                        target,
                        worker,
                        edits,
                        tries=plan.tries,
                        seed=plan.seed,
                    )
                    if len(edits) >= plan.fewest
                    else []
                )
                lines.add(
                    {
                        "question": question,
                        "path": target.path,
                        "qualname": target.qualname,
                        "trials": json.dumps([to_json(t).decode() for t in trials]),
                    }
                )
                found += trials
                tick(1)
        return found

    rest.sort(key=lambda t: (t.tests[0].split("::")[0], t.path, t.first_line))
    return known, len(rest), [lambda c=c: job(c) for c in _chunks(rest, workers)]  # type: ignore[misc]


def _trial_question(package: Package, plan: TrialPlan) -> str:
    """Everything that the trials of a function depend on, besides its name."""
    digest, env = package.source.digest[:16], package.env.name
    return f"{digest} {plan.tries} {plan.fewest} {plan.seed} {env}"


def _answers(known: str, question: str) -> bool:
    """Whether trials made for one question answer another, which may want more legal edits."""
    old, new = known.split(), question.split()
    # Earlier builds did not note the environment.
    return len(old) in (4, 5) and (
        [*old[:2], *old[3:]] == [*new[:2], *new[3:]][: len(old) - 1] and int(old[2]) <= int(new[2])
    )


class LegalKinds:
    """The legal edits of a package's intact functions by kind: a file, completed when asked."""

    def __init__(
        self,
        folder: Path,
        package: Package,
        known: Mapping[tuple[str, str, int], Counts] = MappingProxyType({}),
    ) -> None:
        self._package = package
        self._question = package.source.digest[:16]
        self._lines = Lines(folder / "work" / package.source.base / "kinds.jsonl")
        self._known: dict[tuple[str, str, int], Counts] = dict(known)
        for line in self._lines.read():
            if line.get("question") == self._question:
                kinds = {_kind(k): int(n) for *k, n in json.loads(line["kinds"])}
                self._known[line["path"], line["qualname"], int(line["line"])] = kinds

    def of(self, place: Target | Trial) -> Counts:
        """Legal edits of the function, by kind."""
        key = (place.path, place.qualname, place.first_line)
        if key not in self._known:
            self.note(place)
        return self._known[key]

    def note(self, place: Target | Trial) -> list[tuple[Edit, str]]:
        """List the legal edits of the function, and keep their kinds."""
        text = self._package.text(place.path)
        edits = candidate_edits(text, place.path, place.first_line, place.last_line)
        kinds = count_kinds(edits)
        self._known[place.path, place.qualname, place.first_line] = kinds
        self._lines.add(
            {
                "question": self._question,
                "path": place.path,
                "qualname": place.qualname,
                "line": str(place.first_line),
                "kinds": json.dumps([[*kind, n] for kind, n in kinds.items()]),
            }
        )
        return edits


def _kind(parts: Sequence[str]) -> Kind:
    family, old, new = parts
    return family, old, new


def _chunks(items: list[T], workers: int) -> list[list[T]]:
    size = max(_SMALLEST_CHUNK, -(-len(items) // (workers * _CHUNKS)))
    return [items[i : i + size] for i in range(0, len(items), size)]


def known_validations(
    folder: Path, packages: Iterable[Package], pool: Iterable[Trial], *, candidates: bool
) -> dict[str, Validation]:
    """What earlier builds of the set found out about the bugs, by `Trial.key`."""
    by_name = {p.source.base: p for p in packages}
    questions = {t.key: _question(by_name[t.base], candidates) for t in pool}
    earlier = _word(candidates)  # Earlier builds did not note the package.
    return {
        line["key"]: from_json(Validation, line["validation"])
        for line in _validations(folder).read()
        if line.get("question") in (questions.get(line["key"]), earlier)
    }


def _validations(folder: Path) -> Lines:
    return Lines(folder / "work" / "validated.jsonl")


def _word(candidates: bool) -> str:
    return "candidates" if candidates else "plain"


def _question(package: Package, candidates: bool) -> str:
    return f"{_word(candidates)} {package.source.digest[:16]} {package.env.name}"


def complete(folder: Path, package: Package, trial: Trial, known: Validation) -> Validation:
    """The validation with its legal edits, which those of earlier builds lack; kept."""
    edits = legal_edits(trial, package.text(trial.path))
    whole = replace(known, legal_edits=len(edits), candidates=edits)
    value = {"question": _question(package, False), "key": trial.key}
    _validations(folder).add({**value, "validation": to_json(whole).decode()})
    return whole


def validation_jobs(
    folder: Path,
    packages: dict[str, Package],
    trials: Sequence[Trial],
    tick: Tick,
    *,
    candidates: bool,
    workers: int,
) -> list[Callable[[], list[Validation]]]:
    """Jobs that validate the bugs; each adds what it finds to the set's file."""
    lines = _validations(folder)

    def job(package: Package, part: Sequence[Trial]) -> list[Validation]:
        found = []
        places = (package.base, package.env)
        called = set(package.survey.at_import)
        with package.worker() as worker:
            worker.warm(sorted({t.failing[0].split("::")[0] for t in part}), run=False)
            for trial in part:
                text = package.text(trial.path)
                bench = Bench(worker, text, trial, at_import=(trial.path, trial.qualname) in called)
                result = validate(trial, bench, places, candidates=candidates)
                value = {"question": _question(package, candidates), "key": trial.key}
                lines.add({**value, "validation": to_json(result).decode()})
                found.append(result)
                tick(1)
        return found

    jobs: list[Callable[[], list[Validation]]] = []
    ordered = sorted(trials, key=lambda t: (t.base, t.failing[0].split("::")[0]))
    for base, group in groupby(ordered, key=lambda t: t.base):
        for part in _chunks(list(group), workers):
            jobs.append(lambda b=base, p=part: job(packages[b], p))  # type: ignore[misc]
    return jobs
