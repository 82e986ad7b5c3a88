"""What a package's own tests do unchanged: which pass, how fast, and which functions they enter."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from insitu.tasks.layout import read_source
from insitu.tasks.mutate import list_functions
from insitu.tasks.runner import RunResult, Worker
from insitu.tasks.source import PackageSpec, SourceTree, source_files
from insitu.tasks.stubs import locate
from insitu.types import TaskError

QUICK_S = 0.3
"""Only tests faster than this are used."""
_FILE_LIMIT_S = 60.0
_TRACING = 6
"""Times as long that a traced run may take."""
_REPEATS = 3
_NAME = re.compile(r"^[\w./:\-]+(\[[\w.,+\-]{1,30}\])?$")
_NAME_LENGTH = 110


@dataclass(frozen=True, kw_only=True, slots=True)
class TestFacts:
    """One usable test."""

    __test__ = False

    name: str
    """pytest's node id."""
    duration: float
    functions: tuple[tuple[str, str], ...]
    """Path and qualified name of the functions it enters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What came of one package."""

    tests: tuple[TestFacts, ...]
    overhead: dict[str, float]
    """By test file, seconds of a run besides its tests."""
    at_import: tuple[tuple[str, str], ...] = ()
    """Path and name of functions that are called while test files are imported."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Tests and test files not used, by reason."""
    named: tuple[str, ...] = ()
    """Up to ten of them with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One function with the tests that judge it."""

    path: str
    qualname: str
    first_line: int
    last_line: int
    tests: tuple[str, ...]
    """Of one test file, most telling first."""
    at_import: bool
    """Whether it is called while tests are imported."""
    base_s: float
    """Seconds that running them takes unchanged."""


class _Sieve:
    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.named: list[str] = []
        self.failing: list[str] = []

    def drop(self, what: str, reason: str, detail: str = "") -> None:
        self.counts[reason] += 1
        if len(self.named) < 10:
            self.named.append(f"{what}: {reason}" + (f" ({detail[:120]})" if detail else ""))


def survey(
    source: SourceTree,
    spec: PackageSpec,
    base: Path,
    worker: Worker,
    on_file: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Run each test file three times, once of them traced.

    Raises:
        TaskError: tests fail unchanged (and may not be left out), or none can be used.
    """
    sieve = _Sieve()
    where = _function_index(base, source)
    tests: list[TestFacts] = []
    overhead: dict[str, float] = {}
    at_import: set[tuple[str, str]] = set()
    for file in source.test_files:
        on_file(file)
        runs = _runs(worker, file, sieve)
        if runs:
            usable = _usable(file, runs, spec, sieve)
            tests += [_facts(name, runs, where) for name in usable]
            spent = sum(t.duration for t in runs[-1].tests.values())
            at_import |= _entered(runs[-1], "", where)
            overhead[file] = max(0.05, runs[-1].wall_s - spent)
    _check(source, spec, sieve, tests)
    return Survey(
        tests=tuple(tests),
        overhead=overhead,
        at_import=tuple(sorted(at_import)),
        left_out=dict(sieve.counts),
        named=tuple(sieve.named),
    )


def _check(source: SourceTree, spec: PackageSpec, sieve: _Sieve, tests: list[TestFacts]) -> None:
    if sieve.failing and not spec.allow_failing:
        names = ", ".join(sieve.failing[:5])
        more = f" and {len(sieve.failing) - 5} more" * (len(sieve.failing) > 5)
        raise TaskError(
            f"{source.name} {source.version}: {len(sieve.failing)} of its tests already fail:"
            f" {names}{more}",
            remedy="mend them, add what they need (requires), or leave them out (skip_tests, "
            "allow_failing)",
        )
    if not tests:
        why = sieve.named[0] if sieve.named else "its test files hold no tests"
        raise TaskError(
            f"{source.name} {source.version}: none of its tests can be used: {why}",
            remedy="add what they need to import (requires), take plugin options out of their"
            " settings (drop_options), or choose another package",
        )


def _runs(worker: Worker, file: str, sieve: _Sieve) -> list[RunResult]:
    """Two plain runs and, of the quick tests, a traced one; none where the file cannot be used."""
    runs: list[RunResult] = []
    for number in range(_REPEATS):
        if number == 0:
            result = worker.warm([file], timeout_s=_FILE_LIMIT_S)
        elif number < _REPEATS - 1:
            result = worker.run([file], timeout_s=_FILE_LIMIT_S)
        else:
            quick = [n for n, t in runs[1].tests.items() if t.duration <= QUICK_S]
            limit = _TRACING * _FILE_LIMIT_S
            result = worker.run([file], timeout_s=limit, trace=True, only=quick)
        if result.broken:
            sieve.drop(file, "test file does not import", next(iter(result.broken.values())))
            return []
        if result.status != "done":
            sieve.drop(file, f"test file: {result.status}")
            return []
        if result.exit_code not in (0, 1, 5):
            sieve.drop(file, "pytest refuses the file", _reason(result.note))
            return []
        runs.append(result)
    return runs


def _overhead(run: RunResult) -> float:
    return max(0.05, run.wall_s - sum(t.duration for t in run.tests.values()))


def _reason(note: str) -> str:
    lines = [line for line in note.splitlines() if "error" in line.lower()] or note.splitlines()
    return (lines or [""])[-1].strip()


def _usable(file: str, runs: list[RunResult], spec: PackageSpec, sieve: _Sieve) -> list[str]:
    usable = []
    for name, first in runs[0].tests.items():
        # The traced run is slower, and leaves slow tests out.
        duration = min(r.tests[name].duration for r in runs[:-1] if name in r.tests)
        outcomes = {r.tests[name].outcome if name in r.tests else "" for r in runs[:-1]}
        if name in runs[-1].tests:
            outcomes.add(runs[-1].tests[name].outcome)
        if any(Path(name).match(g) or g in name for g in spec.skip_tests):
            sieve.drop(name, "left out by name")
        elif len(outcomes) > 1:
            sieve.drop(name, "flaky")
        elif outcomes == {"failed"}:
            sieve.failing.append(name)
            sieve.drop(name, "fails unchanged", first.error)
        elif outcomes != {"passed"}:
            sieve.drop(name, "skipped")
        elif duration > QUICK_S or name not in runs[-1].tests:
            sieve.drop(name, "slow")
        elif not _NAME.match(name) or len(name) > _NAME_LENGTH or not name.startswith(file):
            sieve.drop(name, "unwieldy name")
        else:
            usable.append(name)
    return usable


def _function_index(base: Path, source: SourceTree) -> dict[str, list[tuple[int, int, str]]]:
    """By path, first line (with decorators), last line and name of each function."""
    index = {}
    for path in source_files(base, source):
        text = read_source(base / path)
        index[path] = [
            (locate(text, first).begin, last, name) for name, first, last in list_functions(text)
        ]
    return index


def _entered(
    run: RunResult, name: str, where: dict[str, list[tuple[int, int, str]]]
) -> set[tuple[str, str]]:
    return {
        (path, qualname)
        for path, line in run.functions.get(name, ())
        for first, last, qualname in where.get(path, ())
        if first <= line <= last
    }


def _facts(
    name: str, runs: list[RunResult], where: dict[str, list[tuple[int, int, str]]]
) -> TestFacts:
    entered = _entered(runs[-1], name, where)
    duration = min(r.tests[name].duration for r in runs[:-1])
    return TestFacts(name=name, duration=duration, functions=tuple(sorted(entered)))


def targets(base: Path, source: SourceTree, found: Survey, *, most_tests: int) -> list[Target]:
    """Each function that tests enter, with up to `most_tests` tests of the one file that suits."""
    covering: dict[tuple[str, str], dict[str, list[TestFacts]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for test in found.tests:
        for place in test.functions:
            covering[place][test.name.split("::")[0]].append(test)
    result = []
    at_import = set(found.at_import)
    for path in source_files(base, source):
        text = read_source(base / path)
        for qualname, first, last in list_functions(text):
            by_file = covering.get((path, qualname))
            if by_file:
                file = max(by_file, key=lambda f: (_alike(f, path), len(by_file[f]), f))
                tests = _telling(by_file[file], qualname)[:most_tests]
                result.append(
                    Target(
                        path=path,
                        qualname=qualname,
                        first_line=first,
                        last_line=last,
                        tests=tuple(t.name for t in tests),
                        at_import=(path, qualname) in at_import,
                        base_s=found.overhead[file] + sum(t.duration for t in tests),
                    )
                )
    return result


def _alike(test_file: str, path: str) -> bool:
    stem = re.sub(r"^test_?|_?tests?$", "", Path(test_file).stem)
    return bool(stem) and (stem in Path(path).stem or Path(path).stem in stem)


def _telling(tests: Iterable[TestFacts], qualname: str) -> list[TestFacts]:
    """Tests that name the function first, then those that enter little else, then quick ones."""
    bare = qualname.rsplit(".", 1)[-1].strip("_").lower()

    def rank(test: TestFacts) -> tuple[bool, bool, int, float]:
        own = test.name.rsplit("::", 1)[-1].lower()
        named = bool(bare) and bare in own.replace("test_", "")
        return (not named, "[" in test.name, len(test.functions), test.duration)

    return sorted(tests, key=rank)
