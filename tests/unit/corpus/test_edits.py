import json
import random

import pytest

from insitu.corpus.documents import Document
from insitu.corpus.edits import Conversation, RepairMaker, Styles
from insitu.corpus.functions import functions
from insitu.tasks.mutate import candidate_edits, core

CODE = """
def chunks(items, size):
    result = []
    start = 0
    while start < len(items) and size > 0:
        part = items[start : start + size]
        if not part:
            break
        result.append(part)
        start += size
    return result
"""


def show(lines: list[str], line: int) -> list[str]:
    return [f"{n} {text}" for n, text in enumerate(lines, 1) if line <= n <= line + 40]


def make(styles: Styles, count: int = 30) -> list[Conversation]:
    maker = RepairMaker(
        system="s",
        candidates=candidate_edits,
        core=core,
        show=show,
        paths=("pkg/core.py", "pkg/other.py"),
        family_weights={"comparison": 1.0, "constant": 1.0, "boolean": 0.5, "arithmetic": 1.0},
        styles=styles,
    )
    document = Document(source="x", path="x.py", licence="MIT", digest="", text=CODE)
    return maker.make(functions(document)[0], random.Random(3), count)


def calls(conversation: Conversation) -> list[tuple[str, dict[str, object]]]:
    found = [m["tool_calls"][0]["function"] for m in conversation.messages if "tool_calls" in m]
    return [(f["name"], json.loads(f["arguments"])) for f in found]


ONLY = {"single": 0.0, "several": 0.0, "wrong_first": 0.0, "refused": 0.0}


@pytest.mark.parametrize("style", list(ONLY))
def test_the_edits_with_loss_restore_the_function(style: str) -> None:
    made = make(Styles(**{**ONLY, style: 1.0}))
    assert len(made) > 15
    for conversation in made:
        shown = next(m["content"] for m in conversation.messages if m["role"] == "tool")
        lines = dict(text.split(" ", 1) for text in shown.split("\n") if " " in text)
        for i, message in enumerate(conversation.messages):
            if message["role"] != "assistant" or i in conversation.unscored:
                continue
            function = message["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            if function["name"] == "edit":
                at = str(arguments["line"])
                assert arguments["old"] in lines[at]
                lines[at] = lines[at].replace(arguments["old"], arguments["new"], 1)
        assert "\n".join(lines.values()).strip() == CODE.strip()


def test_the_request_and_the_first_read_agree() -> None:
    for conversation in make(Styles(**{**ONLY, "single": 1.0})):
        tool, arguments = calls(conversation)[0]
        assert tool == "read"
        assert (
            f"`chunks` in {arguments['path']}:{arguments['line']} is broken"
            in (conversation.messages[1]["content"])
        )


def test_wrong_edits_are_undone_and_carry_no_loss() -> None:
    for conversation in make(Styles(**{**ONLY, "wrong_first": 1.0}, wrong_counts=(2,))):
        names = [name for name, _ in calls(conversation)]
        assert names[:6] == ["read", "edit", "undo", "edit", "undo", "edit"]
        assert conversation.unscored == {4, 8}


def test_a_conversation_with_reports_tests_first_and_after_each_edit() -> None:
    conversation = make(Styles(**{**ONLY, "wrong_first": 1.0}, wrong_counts=(1,), reports=1.0))[0]
    names = [name for name, _ in calls(conversation)]
    middle = ["run_tests", "read", "edit", "run_tests", "undo", "edit", "run_tests", "finish"]
    assert names == middle
    reports = [m["content"] for m in conversation.messages if m["role"] == "tool"]
    test = conversation.messages[1]["content"].split(" is broken: ")[1].split(" fails")[0]
    assert reports[0].startswith(f"failed: {test}\n{test.split('::')[0]}:")
    assert reports[-1] == "passed"


def test_frames_of_made_up_reports_show_the_file_as_it_is() -> None:
    named = 0
    for conversation in make(Styles(**{**ONLY, "wrong_first": 1.0}, reports=1.0), count=60):
        path = conversation.repairs[0].path
        lines: dict[str, str] = {}
        for message in conversation.messages:
            if message["role"] != "tool":
                continue
            for text in message["content"].split("\n"):
                number, _, code = text.partition(" ")
                if number.isdigit():
                    lines[number] = code.strip()
                elif text.startswith(f"{path}:") and lines:
                    number = number.rpartition(":")[2]
                    # Frames of callers lie outside the function.
                    if number in lines:
                        assert code == lines[number]
                        named += int(number) == conversation.repairs[0].line
    assert named > 5


def test_a_direction_without_its_opposite_stays_rare() -> None:
    conversations = make(Styles(**{**ONLY, "single": 1.0}), count=400)
    changes = [core(c.repairs[0], c.family) for c in conversations if c.family == "comparison"]
    # Unbalanced, about a quarter would be these; the function offers no way to the opposite ones.
    assert 0 < sum(change in {("<=", "<"), (">=", ">")} for change in changes) < 40
    assert not any(change in {("<", "<="), (">", ">=")} for change in changes)


def test_a_function_with_nothing_to_change_gives_nothing() -> None:
    maker = RepairMaker(
        system="",
        candidates=lambda *_: [],
        core=core,
        show=show,
        paths=("a.py",),
        family_weights={},
    )
    document = Document(source="x", path="x.py", licence="MIT", digest="", text=CODE)
    assert maker.make(functions(document)[0], random.Random(0), 3) == []
