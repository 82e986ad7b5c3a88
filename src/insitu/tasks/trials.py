"""Bugs tried out: one edit in one function, and what the tests say."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from insitu.kit.digest import digest_bytes
from insitu.tasks.bench import Bench
from insitu.tasks.mutate import core
from insitu.tasks.runner import RunResult, TestResult, Worker
from insitu.tasks.survey import Target
from insitu.types import Edit

Kind = tuple[str, str, str]
"""Family, old, new."""
Counts = Mapping[Kind, int]

_UNDIRECTED = "<name>"


def opposite(kind: Kind) -> Kind:
    """The kind of the change that takes one of this kind back."""
    family, old, new = kind
    return kind if old == _UNDIRECTED else (family, new, old)


def count_kinds(edits: Iterable[tuple[Edit, str]]) -> Counter[Kind]:
    """How many of the edits, given with their families, are of each kind."""
    return Counter((family, *core(edit, family)) for edit, family in edits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One edit of an intact function with its outcome."""

    base: str
    """Name of the source tree."""
    path: str
    qualname: str
    first_line: int
    last_line: int
    edit: Edit
    """From intact to broken."""
    family: str
    status: str
    """`killed`, `survived`, `timeout`, `crashed`, or `import` where nothing could be imported."""
    candidates: int
    """Legal edits of the function."""
    base_s: float
    failing: tuple[str, ...] = ()
    """Most telling first."""
    passing: tuple[str, ...] = ()
    helpful: bool = False
    error: str = ""
    """Of the first failing test."""

    @property
    def kind(self) -> Kind:
        """Family and what really changes, from intact to broken."""
        return (self.family, *core(self.edit, self.family))

    @property
    def repair(self) -> Kind:
        """The kind of the change that takes the bug back."""
        return opposite(self.kind)

    @property
    def key(self) -> str:
        """Short digest that names the bug."""
        e = self.edit
        parts = (self.base, self.path, self.qualname, str(e.line), str(e.column), e.old, e.new)
        return digest_bytes(*(p.encode() for p in parts))[:8]


def try_function(
    base: str,
    source: str,
    target: Target,
    worker: Worker,
    edits: Sequence[tuple[Edit, str]],
    *,
    tries: int,
    seed: int,
) -> list[Trial]:
    """Break the function in up to `tries` ways, out of its legal edits."""
    parts = (base, target.path, target.qualname, str(seed))
    rng = random.Random(digest_bytes(*(p.encode() for p in parts)))
    bench = Bench(worker, source, target, at_import=target.at_import)
    return [
        _try(base, target, bench, edit, family, len(edits))
        for edit, family in spread(edits, tries, rng)
    ]


def spread(
    edits: Sequence[tuple[Edit, str]], count: int, rng: random.Random
) -> list[tuple[Edit, str]]:
    """Up to `count` edits, the families in turn, random within each."""
    by_family: dict[str, list[tuple[Edit, str]]] = defaultdict(list)
    for edit in edits:
        by_family[edit[1]].append(edit)
    for group in by_family.values():
        rng.shuffle(group)
    names = sorted(by_family)
    rng.shuffle(names)
    chosen: list[tuple[Edit, str]] = []
    while names and len(chosen) < count:
        for name in list(names):
            if by_family[name]:
                chosen.append(by_family[name].pop())
            else:
                names.remove(name)
    return chosen[:count]


def _try(base: str, target: Target, bench: Bench, edit: Edit, family: str, total: int) -> Trial:
    result = bench.run(target.tests, (edit,))
    failing = [t for t in target.tests if t in result.failed]
    ranked = sorted(failing, key=lambda t: not _localises(result.tests[t], target, edit))
    first = result.tests[ranked[0]] if ranked else None
    return Trial(
        base=base,
        path=target.path,
        qualname=target.qualname,
        first_line=target.first_line,
        last_line=target.last_line,
        edit=edit,
        family=family,
        status=_status(result, failing),
        candidates=total,
        base_s=target.base_s,
        failing=tuple(ranked),
        passing=tuple(t for t in target.tests if t in result.passed),
        helpful=first is not None and _localises(first, target, edit),
        error=first.error if first else "",
    )


def _status(result: RunResult, failing: Sequence[str]) -> str:
    if result.status != "done":
        return result.status
    if result.broken or result.exit_code not in (0, 1):
        return "import"
    return "killed" if failing else "survived"


def _localises(test: TestResult, target: Target, edit: Edit) -> bool:
    """Whether the failure points at the bug: by a frame beside it, or by a word of it.

    A frame counts if it is in the function and at most one line away; the message counts if
    it names the wrong word that the edit put in.
    """
    near = any(path == target.path and abs(line - edit.line) <= 1 for path, line in test.frames)
    word = edit.new.strip("() ,:")
    named = word.isidentifier() and len(word) > 3 and f"'{word}'" in test.error
    return near or named
