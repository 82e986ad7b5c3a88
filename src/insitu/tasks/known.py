"""Work of an earlier build in one file, so that another machine need not repeat it.

A build tries thousands of bugs, each with a run of tests. What the chosen tasks need of that is
small: which bugs they are, what the tests said, and which edits are legal. It is used for a package
only where everything it depends on is equal: the source tree with its tests, the version of Python,
and everything installed beside it. Then the package's tests are not surveyed and its functions not
tried, and the same choice comes out, since it was made of these bugs.
"""

import lzma
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from insitu.kit.atomic import write_atomic
from insitu.kit.codec import from_json, to_json
from insitu.kit.log import get_log
from insitu.tasks.environment import PYTHON, installed
from insitu.tasks.source import PackageSpec, SourceTree
from insitu.tasks.survey import Survey
from insitu.tasks.trials import Counts, Trial
from insitu.tasks.validate import Validation
from insitu.types import TaskError

_FORMAT = 1
_MOST_BYTES = 512 << 20
"""Of the file unpacked."""
_log = get_log("tasks")


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPackage:
    """What the work on one package depends on, and its survey."""

    base: str
    digest: str
    """Of all files of the source tree."""
    python: str
    installed: dict[str, str]
    """Version by name of everything in the environment."""
    options: tuple[tuple[str, ...], tuple[str, ...], bool]
    """Test files, names of tests left out, whether failing tests are left out."""
    survey: Survey


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTask:
    """What was found out about one chosen bug."""

    trial: Trial
    legal: tuple[tuple[str, str, str, int], ...]
    """Legal edits of the intact function: family, old, new, how many."""
    validation: Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWork:
    """What `insitu tasks known` writes, as compressed JSON."""

    format: int
    plan: str
    """The settings on which the choice depends, as text."""
    count: int
    """Tasks that were wanted."""
    packages: tuple[KnownPackage, ...]
    tasks: tuple[KnownTask, ...]


def read_known(path: Path) -> KnownWork:
    """Read what `write_known` wrote.

    Raises:
        TaskError: the file is missing, damaged, of another format, or not known work at all.
    """
    remedy = "get the file again, or build without it (--fresh)"
    try:
        with lzma.open(path) as f:
            text = f.read(_MOST_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TaskError(f"known work {path} cannot be read: {error}", remedy=remedy) from error
    if len(text) > _MOST_BYTES:
        raise TaskError(f"known work {path} is over {_MOST_BYTES >> 20} MiB", remedy=remedy)
    try:
        known = from_json(KnownWork, text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the whole"
        raise TaskError(
            f"{path} is not known work ({where}: {first['msg']})", remedy=remedy
        ) from error
    if known.format != _FORMAT:
        raise TaskError(f"{path} has format {known.format}, not {_FORMAT}", remedy=remedy)
    strange = [t.trial.key for t in known.tasks if t.trial.key != t.validation.key]
    if strange:
        raise TaskError(f"{path} mixes up the bugs {', '.join(strange[:3])}", remedy=remedy)
    return known


def write_known(path: Path, known: KnownWork) -> None:
    """Write known work; equal work gives equal bytes."""
    write_atomic(path, lzma.compress(to_json(known), preset=9 | lzma.PRESET_EXTREME))


def known_package(source: SourceTree, env: Path, spec: PackageSpec, survey: Survey) -> KnownPackage:
    """The package with everything that work on it depends on."""
    return KnownPackage(
        base=source.base,
        digest=source.digest,
        python=PYTHON,
        installed=installed(env),
        options=_options(source, spec),
        survey=survey,
    )


def known_work(
    plan: str,
    count: int,
    packages: Iterable[KnownPackage],
    tasks: Iterable[tuple[Trial, Counts, Validation]],
) -> KnownWork:
    """Known work out of what a build has found out, tasks in the order of the choice."""
    return KnownWork(
        format=_FORMAT,
        plan=plan,
        count=count,
        packages=tuple(packages),
        tasks=tuple(
            KnownTask(
                trial=trial,
                legal=tuple((*kind, n) for kind, n in sorted(legal.items())),
                validation=validation,
            )
            for trial, legal, validation in tasks
        ),
    )


def _options(
    source: SourceTree, spec: PackageSpec
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    return source.test_files, spec.skip_tests, spec.allow_failing


class Recall:
    """What known work says about the packages of a build; nothing where it does not fit them."""

    def __init__(self, known: KnownWork | None = None, *, plan: str = "", count: int = 0) -> None:
        fits = known is not None and known.plan == plan and count <= known.count
        if known is not None and not fits:
            _log.warning("the known work is for other settings: everything is tried anew")
        self._packages = {p.base: p for p in known.packages} if known and fits else {}
        self._tasks: dict[str, list[KnownTask]] = defaultdict(list)
        for task in known.tasks if known and fits else ():
            self._tasks[task.trial.base].append(task)
        self._fitting: set[str] = set()

    def survey(self, source: SourceTree, env: Path, spec: PackageSpec) -> Survey | None:
        """The survey of the package, if the known work fits it."""
        known = self._packages.get(source.base)
        if known is None:
            return None
        now = known_package(source, env, spec, known.survey)
        if now != known:
            _log.warning("the known work does not fit %s: %s", source.base, _why(known, now))
            return None
        self._fitting.add(source.base)
        return known.survey

    def trials(self, base: str) -> list[Trial] | None:
        """All bugs of the package that count; None where they have to be tried."""
        return [t.trial for t in self._tasks[base]] if base in self._fitting else None

    def legal(self, base: str) -> dict[tuple[str, str, int], Counts]:
        """Legal edits of the package's functions, by path, name and first line."""
        return {
            (t.trial.path, t.trial.qualname, t.trial.first_line): {
                (family, old, new): n for family, old, new, n in t.legal
            }
            for t in (self._tasks[base] if base in self._fitting else ())
        }

    def validations(self) -> dict[str, Validation]:
        """By `Trial.key`."""
        return {
            t.trial.key: t.validation for base in sorted(self._fitting) for t in self._tasks[base]
        }


def _why(known: KnownPackage, now: KnownPackage) -> str:
    if known.digest != now.digest:
        return "its source tree differs"
    if known.python != now.python:
        return f"made with Python {known.python}, not {now.python}"
    if known.installed != now.installed:
        names = sorted({n for n, _ in known.installed.items() ^ now.installed.items()})
        return f"other versions are installed of {', '.join(names)}"
    return "other test files or tests are used"
