import json
import random

from hypothesis import given
from hypothesis import strategies as st

from insitu.corpus.sessions import Habits, hurried, renamed

REPORT = "failed: tests/test_a.py::TestA::test_f\nsrc/pkg/a.py:4 return x\nTypeError: no"


def says(tool: str, **arguments: object) -> dict[str, object]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}


def hears(text: str) -> dict[str, object]:
    return {"role": "tool", "content": text}


TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "`f` in src/pkg/a.py:3 is broken: tests/test_a.py::TestA::test_f"},
    *(says("run_tests"), hears(REPORT)),
    *(says("read", path="src/pkg/a.py", line=3), hears("3 def f(x):\n4     return x")),
    *(says("edit", path="src/pkg/a.py", line=4, old="x", new="y"), hears("4     return y")),
    *(says("run_tests"), hears(REPORT)),
    *(says("undo"), hears("4     return x")),
    *(says("edit", path="src/pkg/a.py", line=4, old="x", new="z"), hears("4     return z")),
    *(says("run_tests"), hears("passed")),
    *(says("finish"), hears("done")),
]
NEVER = {"blind": 0.0, "untested": 0.0, "gives_up": 0.0}


def tools(messages: list) -> list[str]:
    return [m["tool_calls"][0]["function"]["name"] for m in messages if m.get("tool_calls")]


def change(**habits: float) -> tuple[list[str], frozenset[int]]:
    messages, unscored = hurried(TALK, {6}, Habits(**{**NEVER, **habits}), random.Random(0))
    return tools(messages), unscored


def test_no_habit_changes_nothing() -> None:
    assert hurried(TALK, {6}, Habits(**NEVER), random.Random(0)) == (TALK, {6})


def test_each_habit_leaves_out_what_its_name_says() -> None:
    rest = ["read", "edit", "run_tests", "undo", "edit", "run_tests", "finish"]
    assert change(blind=1.0) == (rest, {4})
    assert change(untested=1.0)[0] == ["run_tests", *rest[:5], "finish"]
    assert change(gives_up=1.0)[0] == ["run_tests", *rest[:3], "finish"]


@given(st.integers(0, 10_000))
def test_calls_and_results_stay_together_and_wrong_edits_unscored(seed: int) -> None:
    messages, unscored = hurried(TALK, {6}, Habits(), random.Random(seed))
    for before, after in zip(messages[2::2], messages[3::2], strict=False):
        at = next(i for i, message in enumerate(TALK) if message is before)
        assert after is TALK[at + 1]
    wrong = [i for i, m in enumerate(messages) if '"y"' in json.dumps(m.get("tool_calls"))]
    assert not wrong or [messages[i] for i in unscored] == [TALK[6]]
    assert tools(messages)[-1] == "finish"


def test_names_change_everywhere_alike_and_code_does_not() -> None:
    new = renamed(TALK, ["alpha", "beta", "gamma"], random.Random(4))
    text = json.dumps(new)
    assert "pkg" not in text
    assert "test_a.py" not in text
    assert "TestA" not in text
    path = json.loads(new[4]["tool_calls"][0]["function"]["arguments"])["path"]
    assert path.startswith("src/")
    assert path.count("/") == 2
    assert f"in {path}:3 is broken" in new[1]["content"]
    assert f"\n{path}:4 return x" in new[3]["content"]
    test = new[1]["content"].split(": ")[-1]
    assert test.startswith("tests/test_")
    assert new[3]["content"].startswith(f"failed: {test}\n")
    assert new[5]["content"] == TALK[5]["content"]
