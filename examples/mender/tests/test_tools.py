import json
from pathlib import Path

import pytest
from conftest import CALC
from mender import agent, source, texts
from mender.tools import Tools


@pytest.fixture
def tools(repo: Path) -> Tools:
    return Tools(repo, lambda: "passed", 2)


def call(tools: Tools, name: str, arguments: object) -> str:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return agent._do(tools, {"name": name, "arguments": given})


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("read", '{"path": ', "arguments are not a JSON object"),
        ("read", "[1]", "arguments are not a JSON object"),
        ("rm", {}, "no tool rm"),
        ("_root", {}, "no tool _root"),
        ("read", {"path": "calc/core.py"}, "line is missing"),
        ("read", {"path": "calc/core.py", "line": "4"}, "line must be a number"),
        ("read", {"path": "calc/core.py", "line": True}, "line must be a number"),
        ("read", {"path": 4, "line": 4}, "path must be a string"),
        ("read", {"path": "a.py", "line": 1, "x": 1}, "read takes no x"),
        ("read", {"path": "a.py", "line": 1}, "no file a.py"),
        ("read", {"path": "calc", "line": 1}, "no file calc"),
        ("read", {"path": "../ISSUE.md", "line": 1}, "no file ../ISSUE.md"),
        ("read", {"path": "/etc/passwd", "line": 1}, "no file /etc/passwd"),
        ("read", {"path": "\0", "line": 1}, "no file \0"),
        ("read", {"path": "calc/core.py", "line": 0}, "calc/core.py has 20 lines"),
        ("read", {"path": "calc/core.py", "line": 21}, "calc/core.py has 20 lines"),
        ("undo", {}, "no edit to undo"),
        ("search", {"text": " "}, "text is empty"),
        ("list_files", {"path": "wat"}, "no folder wat"),
    ],
)
def test_wrong_calls_are_answered(tools: Tools, name: str, arguments: object, problem: str) -> None:
    assert call(tools, name, arguments) == f"error: {problem}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "wat"}, "old is not in line 10"),
        ({"old": "<", "new": "<"}, "old equals new"),
        ({"old": ""}, "old is empty"),
        ({"path": "tests/test_core.py"}, "tests are read-only"),
        ({"path": "conftest.py"}, "no file conftest.py"),
    ],
)
def test_wrong_edits_change_nothing(
    tools: Tools, repo: Path, change: dict[str, str], problem: str
) -> None:
    edit = {"path": "calc/core.py", "line": 10, "old": ">", "new": "<"} | change
    assert call(tools, "edit", edit) == f"error: {problem}"
    assert (repo / "calc/core.py").read_text() == CALC


def test_edit_and_undo_keep_every_other_byte(tools: Tools, repo: Path) -> None:
    file = repo / "calc/odd.py"
    before = "x = 1\r\ny = 'é'  # \x0c\r\nz = 3".encode()
    file.write_bytes(before)
    edit = {"path": "calc/odd.py", "line": 2, "old": "é", "new": "ü"}
    assert call(tools, "edit", edit) == "2 y = 'ü'  # \x0c"
    assert file.read_bytes() == before.replace("é".encode(), "ü".encode())
    assert call(tools, "undo", {}) == "2 y = 'é'  # \x0c"
    assert file.read_bytes() == before


def test_search_and_list(tools: Tools) -> None:
    assert call(tools, "search", {"text": "def clamp"}) == (
        "calc/core.py:4 def clamp(value, low, high):"
    )
    assert call(tools, "search", {"text": "wat"}) == "no match"
    assert call(tools, "list_files", {"path": "."}) == "calc/\ntests/"
    assert call(tools, "list_files", {"path": "calc"}) == "__init__.py\ncore.py"


def test_test_runs_are_counted(tools: Tools) -> None:
    assert [call(tools, "run_tests", "") for _ in range(3)] == [
        "passed",
        "passed",
        "no test runs left",
    ]


CODE = '''import os


class Box:
    def put(
        self,
        thing,
    ):
        """Put it in.

    Badly indented.
        """
        def inner(x):
            return x

        text = """
no indentation
"""
        return inner(thing), text

    # a comment
    async def take(self):
        "One line."
        return 1


LAST = 1
'''


@pytest.mark.parametrize(
    ("line", "first", "last"), [(5, 5, 19), (17, 5, 19), (14, 13, 14), (22, 22, 24), (27, 1, 27)]
)
def test_read_shows_the_function(line: int, first: int, last: int) -> None:
    shown = source.numbered(CODE.split("\n")[:-1], line)
    assert shown[0].split(" ")[0] == str(first)
    assert shown[-1].split(" ")[0] == str(last)
    assert not any("Badly" in text for text in shown if first == 5)


def test_read_shows_at_most_forty_lines() -> None:
    lines = ["def f():", *(f"    x{i} = {i}" for i in range(100))]
    shown = source.numbered(lines, 60)
    assert len(shown) == 40
    assert any(text.startswith("60 ") for text in shown)
    assert source.numbered(lines, 1)[0] == "1 def f():"


def test_definitions_are_valid_and_short() -> None:
    definitions = texts.tools()
    assert [d["function"]["name"] for d in definitions] == [
        "run_tests", "read", "edit", "undo", "search", "list_files", "finish",
    ]  # fmt: skip
    assert all(hasattr(Tools, d["function"]["name"]) for d in definitions)
    assert len(json.dumps(definitions)) < 1600
