"""A good user of the product's tools who knows the repair: the teacher of the cold start.

A pure state machine: it is told the result of its last tool call and says the next one. It runs
the failing test, reads, edits, runs again, takes a wrong edit back, finishes when the test
passes. At declared small rates it is hurried, as recorded sessions of real users are.
"""

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from insitu.types import CandidateEdit, Edit

PASSED = "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the oracle knows about a task.

    Example: `Facts(path="toolz/itertoolz.py", line=120, repair=Edit(...))`.
    """

    path: str
    line: int
    """Of the function's `def`, as the instruction names it."""
    repair: Edit
    wrong: tuple[Edit, ...] = ()
    """Edits to try first; each is taken back when the test still fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """How often a session has each habit; independent of each other."""

    blind: float = 0.15
    """Reads and edits without running the test first."""
    untested: float = 0.10
    """Finishes without running the test after the edit."""
    gives_up: float = 0.05
    """Finishes after a wrong edit, with the test failing."""
    wrong: tuple[float, ...] = (0.5, 0.25, 0.15, 0.1)
    """Shares of sessions with 0, 1, 2, … wrong edits before the right one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manner:
    """The habits of one session, drawn from `Rates`."""

    blind: bool = False
    untested: bool = False
    gives_up: bool = False
    wrong: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One tool call."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    taught: bool = True
    """False for a wrong edit: it is shown, but carries no loss."""


def draw_manner(rates: Rates, rng: random.Random) -> Manner:
    """The habits of one session."""
    wrong = rng.choices(range(len(rates.wrong)), rates.wrong)[0]
    return Manner(
        blind=rng.random() < rates.blind,
        untested=rng.random() < rates.untested,
        gives_up=wrong > 0 and rng.random() < rates.gives_up,
        wrong=wrong,
    )


def plausible_wrong(
    candidates: Sequence[CandidateEdit], repair: Edit, count: int, rng: random.Random
) -> tuple[Edit, ...]:
    """Distinct edits that do not pass: on the right line where there are such, else anywhere."""
    failing = [c.edit for c in candidates if not c.passes and c.edit != repair]
    here = [e for e in failing if e.line == repair.line]
    chosen: list[Edit] = []
    for _ in range(count * 4):
        pool = here if here and rng.random() < 0.4 else failing
        if pool and (edit := rng.choice(pool)) not in chosen:
            chosen.append(edit)
        if len(chosen) == count:
            break
    return tuple(chosen)


class Oracle:
    """One session; give `next` the result of the call it asked for last.

    Example: `Oracle(facts, Manner()).next("")` asks for `run_tests`.
    """

    def __init__(self, facts: Facts, manner: Manner) -> None:
        self._steps = _session(facts, manner)
        self._started = False

    def next(self, result: str) -> Action | None:
        """The next call, or None when the session is over."""
        try:
            if self._started:
                return self._steps.send(result)
            self._started = True
            return next(self._steps)
        except StopIteration:
            return None


def _session(facts: Facts, manner: Manner) -> Generator[Action, str, None]:
    tries = [(e, False) for e in facts.wrong[: manner.wrong]] + [(facts.repair, True)]
    if not manner.blind:
        report = yield Action(tool="run_tests")
        if report == PASSED:
            yield Action(tool="finish")
            return
    shown = yield Action(tool="read", arguments={"path": facts.path, "line": facts.line})
    for edit, right in tries:
        if edit.line not in _numbers(shown):
            again = yield Action(tool="read", arguments={"path": facts.path, "line": edit.line})
            shown = f"{shown}\n{again}"
        yield Action(tool="edit", arguments=_arguments(edit), taught=right)
        if right and manner.untested:
            break
        report = yield Action(tool="run_tests")
        if report == PASSED or right or manner.gives_up:
            break
        yield Action(tool="undo")
    yield Action(tool="finish")


def _numbers(shown: str) -> set[int]:
    firsts = (line.split(" ", 1)[0] for line in shown.split("\n"))
    return {int(f) for f in firsts if f.isdigit()}


def _arguments(edit: Edit) -> dict[str, Any]:
    return {"path": edit.path, "line": edit.line, "old": edit.old, "new": edit.new}


def play(
    oracle: Oracle, use: Callable[[str, dict[str, Any]], str], limit: int = 16
) -> Iterator[tuple[Action, str]]:
    """Let the oracle work with `use(tool, arguments) -> result`; each call with its result."""
    result = ""
    for _ in range(limit):
        action = oracle.next(result)
        if action is None:
            return
        result = use(action.tool, action.arguments)
        yield action, result
