import random

from hypothesis import given
from hypothesis import strategies as st

from insitu.corpus.oracle import (
    Facts,
    Manner,
    Oracle,
    Rates,
    draw_manner,
    plausible_wrong,
    play,
)
from insitu.types import CandidateEdit, Edit


class Repository:
    """Lines 10 to 12 of a file, with a bug on line 11, and the product's answers."""

    def __init__(self) -> None:
        self.lines = {10: "def f(x):", 11: "    return x < 1", 60: "    pass"}
        self.before: list[tuple[int, str]] = []

    def use(self, tool: str, arguments: dict[str, object]) -> str:
        if tool == "run_tests":
            return "passed" if self.lines[11] == "    return x <= 1" else "failed: t.py::test_f"
        if tool == "read":
            near = [n for n in self.lines if abs(n - int(str(arguments["line"]))) < 20]
            return "\n".join(f"{n} {self.lines[n]}" for n in near)
        if tool == "edit":
            line = int(str(arguments["line"]))
            self.before.append((line, self.lines[line]))
            self.lines[line] = self.lines[line].replace(
                str(arguments["old"]), str(arguments["new"]), 1
            )
            return f"{line} {self.lines[line]}"
        if tool == "undo":
            line, text = self.before.pop()
            self.lines[line] = text
            return f"{line} {text}"
        return "done"


def edit(line: int, old: str, new: str) -> Edit:
    return Edit(path="a.py", line=line, old=old, new=new)


FACTS = Facts(
    path="a.py",
    line=10,
    repair=edit(11, "<", "<="),
    wrong=(edit(11, "1", "0"), edit(60, "pass", "break")),
)


def tools(manner: Manner) -> list[str]:
    return [action.tool for action, _ in play(Oracle(FACTS, manner), Repository().use)]


def test_a_careful_session() -> None:
    assert tools(Manner()) == ["run_tests", "read", "edit", "run_tests", "finish"]


def test_wrong_edits_are_taken_back_and_not_taught() -> None:
    repository = Repository()
    played = list(play(Oracle(FACTS, Manner(wrong=2)), repository.use))
    assert [a.tool for a, _ in played] == [
        *("run_tests", "read", "edit", "run_tests", "undo"),
        *("read", "edit", "run_tests", "undo", "edit", "run_tests", "finish"),
    ]
    assert [a.taught for a, _ in played if a.tool == "edit"] == [False, False, True]
    assert repository.lines[11] == "    return x <= 1"
    assert repository.lines[60] == "    pass"


def test_hurried_sessions() -> None:
    assert tools(Manner(blind=True)) == ["read", "edit", "run_tests", "finish"]
    assert tools(Manner(untested=True)) == ["run_tests", "read", "edit", "finish"]
    assert tools(Manner(gives_up=True, wrong=1)) == [
        *("run_tests", "read", "edit", "run_tests", "finish")
    ]


def test_it_stops_where_nothing_fails() -> None:
    answers = {"run_tests": "passed", "finish": "done"}
    played = play(Oracle(FACTS, Manner()), lambda tool, _: answers[tool])
    assert [a.tool for a, _ in played] == ["run_tests", "finish"]


@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2))
def test_every_session_ends_by_finishing(blind: bool, untested: bool, up: bool, wrong: int) -> None:
    manner = Manner(blind=blind, untested=untested, gives_up=up and wrong > 0, wrong=wrong)
    assert tools(manner)[-1] == "finish"


def test_habits_come_at_their_rates() -> None:
    rng = random.Random(0)
    drawn = [draw_manner(Rates(blind=0.2, wrong=(0.5, 0.5)), rng) for _ in range(2000)]
    assert 0.17 < sum(m.blind for m in drawn) / 2000 < 0.23
    assert 0.46 < sum(m.wrong for m in drawn) / 2000 < 0.54


def test_wrong_edits_are_distinct_and_never_pass() -> None:
    repair = edit(11, "<", "<=")
    candidates = [
        CandidateEdit(edit=e, family="x", passes=p)
        for e, p in ((repair, True), (edit(11, "<", "!="), True), (edit(11, "1", "0"), False))
    ]
    chosen = plausible_wrong(candidates, repair, 3, random.Random(0))
    assert chosen == (edit(11, "1", "0"),)
