import json
from pathlib import Path
from typing import Any

import pytest

from insitu.corpus.conversations import count_lines, read_conversations, read_tools
from insitu.gateway.dialects.chat import ChatDialect
from insitu.types import UsageError

USER = {"role": "user", "content": "hi"}
SAYS = {"role": "assistant", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {}}}


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}


@pytest.fixture
def lines(tmp_path: Path):
    def write(*values: Any) -> Path:
        path = tmp_path / "talks.jsonl"
        texts = [v if isinstance(v, str) else json.dumps(v) for v in values]
        path.write_text("\n".join(texts) + "\n")
        return path

    return write


def test_a_line_is_read_as_the_gateway_would_read_it(lines) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
        USER,
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "c2", "function": {"name": "read", "arguments": {"b": 1, "a": "é"}}},
                {"function": {"name": "read"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "function", "name": "read", "content": "2"},
        SAYS,
    ]
    path = lines({"messages": messages, "tools": [TOOL], "id": "x"}, "", {"messages": messages})
    own, given = read_conversations(path, read_tools_of(path, [TOOL]))
    body = {"messages": messages, "tools": [TOOL], "model": "m"}
    ask = ChatDialect().read(json.dumps(body).encode())
    assert own.messages == given.messages == ask.messages
    assert own.tools == given.tools == ask.tools
    assert given.where == f"{path}:3"
    assert count_lines(path) == 2


def read_tools_of(path: Path, tools: list[Any]) -> tuple[dict[str, Any], ...]:
    (path.parent / "tools.json").write_text(json.dumps(tools))
    return read_tools(path.parent / "tools.json")


BAD = [
    ('{"messages": [', "not JSON", "per line"),
    ("[" * 100_000, "not JSON", "per line"),
    ([USER], "no list of messages", "per line"),
    ({"message": [USER]}, "no list of messages", "per line"),
    ({"messages": []}, "no list of messages", "per line"),
    ({"messages": ["hi", SAYS]}, "messages[0]: not an object", "role"),
    (
        {"messages": [USER, {"role": "robot", "content": ""}]},
        "messages[1].role: 'robot' is unknown",
        "Use one of system",
    ),
    ({"messages": [USER, {"content": ""}]}, "messages[1].role: None is unknown", "Use one of"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAYS]},
        "messages[0].content: not text",
        "images",
    ),
    ({"messages": [{"role": "user", "content": 3}, SAYS]}, "messages[0].content: not", "text"),
    ({"messages": [USER]}, "messages: no assistant's message", "leave the line out"),
    ({"messages": [SAYS, USER]}, "messages[0]: an assistant's message", "begin with the user"),
    (
        {"messages": [USER, call(arguments="{}")]},
        "messages[1].tool_calls[0]: no function with a name",
        "name",
    ),
    (
        {"messages": [USER, call(name="f", arguments="{x")]},
        "messages[1].tool_calls[0].function.arguments: not a JSON object",
        "unscored",
    ),
    ({"messages": [USER, call(name="f", arguments=[1])]}, "not a JSON object", "correct it"),
    ({"messages": [USER, SAYS], "unscored": [0]}, "unscored: 0 is no assistant's", "from 0"),
    ({"messages": [USER, SAYS], "unscored": [2]}, "unscored: 2 is no assistant's", "from 0"),
    ({"messages": [USER, SAYS], "unscored": [True]}, "unscored: True is no", "from 0"),
    ({"messages": [USER, SAYS], "unscored": 1}, "unscored: not a list", "from 0"),
    ({"messages": [USER, SAYS], "unscored": ["1"]}, "unscored: '1' is no", "from 0"),
    ({"messages": [USER, SAYS], "tools": {"a": 1}}, "tools: not a list", "definitions"),
    ({"messages": [USER, SAYS], "tools": [{"name": "f"}]}, "tools[0]: no function", "definitions"),
]


@pytest.mark.parametrize(("line", "problem", "remedy"), BAD)
def test_a_bad_line_is_named_with_place_and_remedy(lines, line, problem: str, remedy: str) -> None:
    path = lines({"messages": [USER, SAYS]}, line)
    with pytest.raises(UsageError) as e:
        list(read_conversations(path))
    assert e.value.problem.startswith(f"{path}:2: ")
    assert problem in str(e.value)
    assert remedy.lower() in str(e.value).lower()


def test_bad_arguments_may_be_shown_where_they_are_not_taught(lines) -> None:
    path = lines({"messages": [USER, call(name="f", arguments="{x"), SAYS], "unscored": [1]})
    (talk,) = read_conversations(path)
    assert talk.unscored == {1}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        list(read_conversations(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="No such file"):
        read_tools(tmp_path / "none.json")
    for text, message in (
        ("{", "not JSON"),
        ('{"a": 1}', "not a list"),
        ('[{"a": 1}]', "tools.0."),
    ):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(UsageError, match=message):
            read_tools(tmp_path / "t.json")
