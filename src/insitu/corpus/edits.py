"""Repair conversations made from functions without tests: break, show, repair.

A function of the corpus is put at a made-up place, one or a few one-place mutations are applied,
and the conversation is what a user who knows the mistake would do with the product's tools. No
test is run; where a report is shown it is made up (`reports`).
"""

import ast
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from insitu.corpus.functions import Function
from insitu.corpus.oracle import PASSED
from insitu.corpus.reports import BrokenFunction, made_up_report
from insitu.types import Edit

Candidates = Callable[[str, str, int, int], list[tuple[Edit, str]]]
"""(source, path, first line, last line) to every legal edit with its family."""
Show = Callable[[list[str], int], list[str]]
"""The product's view of a file around a line: lines with their numbers."""

_FEWEST = 8
"""Functions with fewer legal edits say where the bug is by themselves."""

INSTRUCTION = "`{name}` in {path}:{line} is broken: {test} fails. Fix it; leave the tests alone."
SEVERAL = "`{name}` in {path}:{line} has {count} bugs. Fix them."


@dataclass(frozen=True, kw_only=True, slots=True)
class Styles:
    """Shares of the kinds of conversation; they need not add up to 1."""

    single: float = 0.45
    """Read, repair."""
    several: float = 0.40
    """Several bugs, repaired in random order: many repairs for the tokens of one function."""
    counts: tuple[int, ...] = (2, 3, 3, 4, 5)
    """How many bugs these have; one of these numbers at random."""
    wrong_first: float = 0.08
    """A wrong edit (without loss), undone, then the right one."""
    refused: float = 0.07
    """An edit whose `old` is not in the line (without loss), then the right one."""
    reports: float = 0.0
    """Share of the conversations with one bug that run the test first (a made-up report), run it
    after each edit, and finish or give up as `habits` say."""
    wrong_counts: tuple[int, ...] = (1, 1, 2, 3)
    """How many wrong edits come first in `wrong_first`; one of these numbers at random."""
    near: float = 0.6
    """Share of the wrong edits that are on the right line, where it offers any."""
    test_after: float = 0.6
    """Share of the other conversations that end by running the test (no result); the rest
    finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Messages, and which of them and of their lines are not to be learnt."""

    messages: list[dict[str, Any]]
    unscored: frozenset[int]
    broken: frozenset[int]
    """Line numbers that hold a bug: the language model's loss leaves them out."""
    family: str
    repairs: tuple[Edit, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairMaker:
    """Makes conversations; the choice of bugs is balanced over families and directions."""

    system: str
    candidates: Candidates
    core: Callable[[Edit, str], tuple[str, str]]
    """What an edit really changes, e.g. `("<", "<=")`."""
    show: Show
    paths: Sequence[str]
    """Paths to pick from, so that copying them is learnt and not remembered."""
    family_weights: Mapping[str, float]
    styles: Styles = field(default_factory=Styles)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def make(self, function: Function, rng: random.Random, count: int) -> list[Conversation]:
        """Up to `count` conversations on one function, each with other bugs."""
        source, first, last = function.standalone
        legal = self.candidates(source, "_", first, last)
        if len(legal) < _FEWEST:
            return []
        lines = source.split("\n")[first - 1 : last]
        made = [self._one(function, lines, first, legal, rng) for _ in range(count)]
        return [m for m in made if m is not None]

    def _one(
        self,
        function: Function,
        lines: list[str],
        first: int,
        legal: list[tuple[Edit, str]],
        rng: random.Random,
    ) -> Conversation | None:
        s = self.styles
        weights = (s.single, s.several, s.wrong_first, s.refused)
        style = rng.choices(("single", "several", "wrong_first", "refused"), weights)[0]
        bugs = self._bugs(legal, rng, rng.choice(s.counts) if style == "several" else 1)
        start = _start_line(rng)
        path = rng.choice(self.paths) if rng.random() < 0.7 else function.document.path
        moved = [(_moved(e, path, start - first), family) for e, family in bugs]
        file = _File(path, [""] * (start - 1) + lines + [""])
        for edit, _ in moved:
            file.apply(edit)
        if not _parses(file.lines[start - 1 :]):
            return None
        shown = self.show(file.lines, start)
        numbers = {int(text.split(" ", 1)[0]) for text in shown}
        if any(e.line not in numbers for e, _ in moved):
            return None
        test = _test_id(function, path)
        talk = _Talk(self.system, file, _request(function, path, start, test, len(bugs)))
        if style != "several" and rng.random() < s.reports:
            bug, family = moved[0]
            end = start + len(lines)
            talk.reporter = _reporter(function, start, end, test, bug, family, file, rng)
        talk.test()
        talk.call("read", "\n".join(shown), path=path, line=start)
        if style == "wrong_first" and not self._try_wrong(talk, file, start, moved[0][0], rng):
            return None
        if style == "refused":
            talk.try_absent(moved[0][0], sorted(numbers), rng)
        rng.shuffle(moved)
        repairs = tuple(_reversed(edit) for edit, _ in moved)
        for repair in repairs:
            talk.edit(repair)
        talk.end(tested=rng.random() < s.test_after)
        return Conversation(
            messages=talk.messages,
            unscored=frozenset(talk.unscored),
            broken=frozenset(e.line for e, _ in moved),
            family=moved[0][1] if len(moved) == 1 else "several",
            repairs=repairs,
        )

    def _try_wrong(
        self, talk: "_Talk", file: "_File", start: int, bug: Edit, rng: random.Random
    ) -> bool:
        """One or a few distinct wrong edits, on the right line or elsewhere, each taken back."""
        text = "\n".join(file.lines[start - 1 :])
        head = "if 1:\n" if text[0].isspace() else ""
        by = start - 1 - head.count("\n")
        last = len(text.rstrip().split("\n")) + head.count("\n")
        legal = self.candidates(head + text, "_", 1 + head.count("\n"), last)
        edits = [_moved(e, bug.path, by) for e, _ in legal]
        wrong = [e for e in edits if (e.line, e.new) != (bug.line, bug.old)]
        here = [e for e in wrong if e.line == bug.line]
        tried: list[Edit] = []
        for _ in range(rng.choice(self.styles.wrong_counts)):
            near = rng.random() < self.styles.near
            pool = [e for e in (here if near else wrong) if e not in tried]
            if pool:
                tried.append(rng.choice(pool))
                talk.try_wrong(tried[-1])
        return bool(tried)

    def _bugs(
        self, legal: list[tuple[Edit, str]], rng: random.Random, count: int
    ) -> list[tuple[Edit, str]]:
        """Legal edits on different lines: a family by its weight, then one of its edits."""
        by_family: dict[str, list[tuple[Edit, str]]] = {}
        for edit, family in legal:
            by_family.setdefault(family, []).append((edit, family))
        names = sorted(by_family)
        weights = [self.family_weights.get(n, 0.01) for n in names]
        chosen: dict[int, tuple[Edit, str]] = {}
        for _ in range(count * 6):
            edit, family = rng.choice(by_family[rng.choices(names, weights)[0]])
            if edit.line not in chosen and self._balanced(edit, family, rng):
                chosen[edit.line] = (edit, family)
            if len(chosen) == count:
                break
        return list(chosen.values()) or [rng.choice(legal)]

    def _balanced(self, edit: Edit, family: str, rng: random.Random) -> bool:
        """Accept so that `a` to `b` becomes about as frequent as `b` to `a`."""
        old, new = self.core(edit, family)
        ratio = (self.seen[new, old] + 5) / (self.seen[old, new] + 5)
        accepted = rng.random() < ratio**4
        self.seen[old, new] += accepted
        return accepted


class _File:
    def __init__(self, path: str, lines: list[str]) -> None:
        self.path, self.lines = path, lines

    def apply(self, edit: Edit) -> None:
        text = self.lines[edit.line - 1]
        self.lines[edit.line - 1] = text.replace(edit.old, edit.new, 1)

    def shown(self, line: int) -> str:
        return f"{line} {self.lines[line - 1]}"


class _Talk:
    """A conversation being written."""

    def __init__(self, system: str, file: _File, request: str) -> None:
        self.file = file
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": request},
        ]
        self.unscored: list[int] = []
        self.reporter: Callable[[], str] | None = None

    def call(self, tool: str, result: str | None, **arguments: Any) -> None:
        name = f"call_{len(self.messages)}"
        function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
        call = {"id": name, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        if result is not None:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": result})

    def edit(self, edit: Edit) -> None:
        self.file.apply(edit)
        self._ask(edit, self.file.shown(edit.line))

    def test(self) -> None:
        """Run the failing test, if this conversation has reports."""
        if self.reporter:
            self.call("run_tests", self.reporter())

    def end(self, *, tested: bool) -> None:
        if self.reporter:
            self.call("run_tests", PASSED)
            self.call("finish", None)
        else:
            self.call("run_tests" if tested else "finish", None)

    def try_wrong(self, wrong: Edit) -> None:
        before = self.file.lines[wrong.line - 1]
        self.unscored.append(len(self.messages))
        self.edit(wrong)
        self.test()
        self.file.lines[wrong.line - 1] = before
        self.call("undo", self.file.shown(wrong.line))

    def try_absent(self, bug: Edit, numbers: list[int], rng: random.Random) -> None:
        repair = _reversed(bug)
        elsewhere = [n for n in numbers if repair.old not in self.file.lines[n - 1]]
        if not elsewhere:
            return
        line = rng.choice(elsewhere)
        self.unscored.append(len(self.messages))
        self._ask(
            Edit(path=repair.path, line=line, old=repair.old, new=repair.new),
            f"error: old is not in line {line}",
        )

    def _ask(self, edit: Edit, result: str) -> None:
        self.call("edit", result, path=edit.path, line=edit.line, old=edit.old, new=edit.new)


def _parses(lines: list[str]) -> bool:
    head = "if 1:\n" if lines[0][:1].isspace() else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(head + "\n".join(lines))
        except (SyntaxError, ValueError):
            return False
    return True


def _reversed(edit: Edit) -> Edit:
    return Edit(path=edit.path, line=edit.line, old=edit.new, new=edit.old, column=edit.column)


def _moved(edit: Edit, path: str, by: int) -> Edit:
    return Edit(path=path, line=edit.line + by, old=edit.old, new=edit.new, column=edit.column)


def _start_line(rng: random.Random) -> int:
    """Files differ in length by orders of magnitude: three ranges, uniform in each."""
    low, high = rng.choices(((1, 99), (100, 999), (1000, 3000)), (0.2, 0.6, 0.2))[0]
    return rng.randint(low, high)


def _reporter(
    function: Function,
    first: int,
    end: int,
    test: str,
    bug: Edit,
    family: str,
    file: _File,
    rng: random.Random,
) -> Callable[[], str]:
    """Reports on the file as it is; the same kind of failure each time."""
    seed = rng.random()

    def report() -> str:
        broken = BrokenFunction(
            name=function.name,
            path=file.path,
            first=first,
            lines=file.lines[first - 1 : end - 1],
            test=test,
            bug=bug,
            family=family,
        )
        return made_up_report(broken, random.Random(seed))

    return report


def _test_id(function: Function, path: str) -> str:
    stem = PurePosixPath(path).stem.strip("_")
    name = re.sub(r"\W|^_+", "", function.name.split(".")[-1])
    owner = f"{function.name.split('.')[0]}Test::" if "." in function.name else ""
    return f"tests/test_{stem}.py::{owner}test_{name}"


def _request(function: Function, path: str, line: int, test: str, count: int) -> str:
    if count > 1:
        return SEVERAL.format(name=function.name, path=path, line=line, count=count)
    return INSTRUCTION.format(name=function.name, path=path, line=line, test=test)
