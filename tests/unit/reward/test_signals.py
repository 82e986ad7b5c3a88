"""Signals read from recorded calls in OpenAI chat form."""

import json

import pytest

from insitu.reward.formula import evaluate
from insitu.reward.signals import NAMES, episode_signals, tool_uses
from insitu.types import Call, Change, ChangeKind, EpisodeEnd, TokenResult, Verdict

TOOLS = {"edit": ["edit"], "test": ["run_tests"], "undo": ["undo"], "finish": ["finish"]}
OFFERED = [{"type": "function", "function": {"name": n}} for k in TOOLS.values() for n in k]
PASS, FAIL = "passed", "failed: tests/test_a.py::test_x\nValueError: x"


def recorded(*steps, malformed_text=None):
    """Calls of an episode; each step is (tool, arguments or raw text, result or None)."""
    messages = [{"role": "user", "content": "fix it"}]
    calls = []
    for i, (name, arguments, result) in enumerate(steps):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        asked = {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": raw}}
        message = {"role": "assistant", "content": None, "tool_calls": [asked]}
        calls.append(_call(i, messages, message))
        messages = [*messages, message]
        if result is not None:
            messages = [*messages, {"role": "tool", "tool_call_id": f"c{i}", "content": result}]
    if malformed_text is not None:
        calls.append(_call(len(calls), messages, {"role": "assistant", "content": malformed_text}))
    return calls


def _call(index, messages, message):
    return Call(
        call_id=f"call{index}", episode_id="e", index=index, prompt_ids=(1, 2),
        result=TokenResult(token_ids=(3,) * 10, logprobs=(-1.0,) * 10, versions=(0,) * 10, finish="stop"),
        request=json.dumps({"messages": messages, "tools": OFFERED}),
        response=json.dumps({"choices": [{"index": 0, "message": message}]}),
    )  # fmt: skip


def signals(calls, *, end=EpisodeEnd.FINISHED, passed=True, changes=()):
    verdict = Verdict(passed=passed, tests_passed=3 if passed else 1, tests_total=3)
    return {s.name: s.value for s in episode_signals(end, calls, changes, verdict, tools=TOOLS)}


EDIT = {"path": "a.py", "line": 3, "old": "<", "new": "<="}


def test_a_good_episode():
    calls = recorded(
        ("run_tests", {}, FAIL),
        ("edit", EDIT, "3 x"),
        ("run_tests", {}, PASS),
        ("finish", {}, None),
    )
    change = Change(path="a.py", kind=ChangeKind.MODIFIED)
    assert signals(calls, changes=(change,)) == {
        "passed": 1, "tests_passed": 1, "finished": 1, "calls": 4, "sampled_tokens": 40,
        "effort": 0.04, "edits": 1, "test_runs": 2, "repeated_edits": 0, "tested_before_edit": 1,
        "finished_after_pass": 1, "malformed_calls": 0, "refused_calls": 0,
        "changed_files": 1,
    }  # fmt: skip


def test_repeating_an_edit_that_did_not_help_counts():
    again = {"new": "<=", "path": "a.py", "line": 3, "old": "<"}  # another order of the keys
    calls = recorded(
        ("edit", EDIT, "3 x"), ("run_tests", {}, FAIL), ("undo", {}, "ok"), ("edit", again, "3 x"),
        ("edit", {**EDIT, "new": ">"}, "3 x"), ("edit", EDIT, "3 x"),
    )  # fmt: skip
    got = signals(calls, passed=False)
    assert (got["edits"], got["repeated_edits"]) == (4, 2)
    assert got["tested_before_edit"] == 0
    assert got["tests_passed"] == pytest.approx(1 / 3)


def test_an_edit_after_a_pass_starts_afresh():
    calls = recorded(("edit", EDIT, "x"), ("run_tests", {}, PASS), ("edit", EDIT, "x"))
    assert signals(calls)["repeated_edits"] == 0


@pytest.mark.parametrize(
    ("steps", "end", "value"),
    [
        ([("run_tests", {}, PASS), ("finish", {}, None)], EpisodeEnd.FINISHED, 1),
        ([("run_tests", {}, FAIL), ("finish", {}, None)], EpisodeEnd.FINISHED, 0),
        ([("run_tests", {}, PASS)], EpisodeEnd.TURN_LIMIT, 0),
        (
            [("run_tests", {}, PASS), ("edit", EDIT, "x"), ("finish", {}, None)],
            EpisodeEnd.FINISHED,
            0,
        ),
        ([("finish", {}, None)], EpisodeEnd.FINISHED, 0),
    ],
)
def test_finishing_after_a_pass(steps, end, value):
    assert signals(recorded(*steps), end=end)["finished_after_pass"] == value


def test_malformed_calls():
    calls = recorded(
        ("edit", "{not json", "error"), ("edit", "[1]", "error"), ("rm_rf", {}, "error"),
        malformed_text="<tool_call>\n{broken",
    )  # fmt: skip
    assert signals(calls)["malformed_calls"] == 4


def test_a_result_that_begins_with_error_is_a_refused_call():
    refused = ("edit", EDIT, "error: old is not in line 3")
    calls = recorded(refused, ("edit", EDIT, "3 errors"), refused, ("finish", {}, None))
    assert signals(calls)["refused_calls"] == 2


def test_an_empty_or_unreadable_recording_gives_zeros():
    assert signals([], passed=False)["calls"] == 0
    broken = recorded(("edit", EDIT, "x"))
    broken = [type(broken[0])(**{**_fields(broken[0]), "request": "nonsense", "response": "[]"})]
    assert signals(broken)["edits"] == 0


def _fields(call):
    return {name: getattr(call, name) for name in call.__slots__}


def test_results_are_found_in_a_later_request():
    uses = tool_uses(recorded(("run_tests", {}, FAIL), ("finish", {}, None)))
    assert [u.result for u in uses] == [FAIL, None]


def test_all_signals_are_named_and_usable_in_a_formula():
    made = episode_signals(
        EpisodeEnd.GAVE_UP,
        [],
        (),
        Verdict(passed=False, tests_passed=0, tests_total=0),
        tools=TOOLS,
    )
    assert tuple(s.name for s in made) == NAMES
    assert evaluate(" + ".join(NAMES), made).value == 0.0
