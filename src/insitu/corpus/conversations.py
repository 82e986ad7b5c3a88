"""Recorded transcripts: one conversation per line, in the form of OpenAI's Chat Completions.

    {"messages": [{"role": "user", "content": "…"}, …], "tools": […], "unscored": [3]}

`tools` and `unscored` may be left out; other keys are not looked at. What is read is what the
gateway would read: text parts are joined, `developer` is `system`, `function` is `tool`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from insitu.types import UsageError

Table = dict[str, Any]
"""A JSON object."""

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_ONE_PER_LINE = 'write one object with "messages" per line'


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """One conversation, checked.

    Example: `Talk(where="talks.jsonl:7", messages=({"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"}))`.
    """

    where: str
    """File and line, for errors."""
    messages: tuple[Table, ...]
    """Content is text, arguments are JSON text."""
    tools: tuple[Table, ...] = ()
    """Definitions in OpenAI's form."""
    unscored: frozenset[int] = frozenset()
    """Indexes of assistant messages that are shown but not taught."""


class _BadError(ValueError):
    """What is wrong with a value, and where in the line it stands."""

    def __init__(self, at: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.at, self.problem, self.remedy = at, problem, remedy


def count_lines(path: Path) -> int:
    """Lines of a file that are not empty.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open("rb") as f:
            return sum(1 for line in f if line.strip())
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", remedy="give a file of conversations") from e


def read_tools(path: Path) -> tuple[Table, ...]:
    """Tool definitions in OpenAI's form, from a file with a JSON list of them.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        return _tools(json.loads(path.read_bytes()))
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", remedy="give a file of tool definitions") from e
    except _BadError as e:
        raise UsageError(f"{path}: {e.at}: {e.problem}", remedy=e.remedy) from e
    except ValueError as e:
        raise UsageError(f"{path}: not JSON: {e}", remedy="write a list of definitions") from e


def read_conversations(path: Path, tools: Sequence[Table] = ()) -> Iterator[Talk]:
    """The conversations of a JSON Lines file in their order; empty lines are passed over.

    Args:
        path: the file.
        tools: definitions for the conversations that bring none.

    Raises:
        UsageError: the file cannot be read, or a line is no conversation; names the line, the
            place in it and the remedy.
    """
    count_lines(path)
    with path.open("rb") as f:
        for number, line in enumerate(f, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield _conversation(json.loads(line), where, tools)
            except _BadError as e:
                at = f"{e.at}: " if e.at else ""
                raise UsageError(f"{where}: {at}{e.problem}", remedy=e.remedy) from e
            except (ValueError, RecursionError) as e:
                raise UsageError(f"{where}: not JSON: {e}", remedy=_ONE_PER_LINE) from e


def _conversation(value: Any, where: str, tools: Sequence[Table]) -> Talk:
    given = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(given, list) or not given:
        raise _BadError("", "no list of messages", _ONE_PER_LINE)
    unscored = _unscored(value.get("unscored"), given)
    messages = tuple(
        _message(m, f"messages[{i}]", taught=i not in unscored) for i, m in enumerate(given)
    )
    if messages[0]["role"] == "assistant":
        raise _BadError(
            "messages[0]", "an assistant's message with nothing before it", "begin with the user"
        )
    if not any(m["role"] == "assistant" for m in messages):
        raise _BadError("messages", "no assistant's message to learn", "leave the line out")
    own = value.get("tools")
    return Talk(
        where=where,
        messages=messages,
        tools=tuple(tools) if own is None else _tools(own),
        unscored=unscored,
    )


def _unscored(value: Any, messages: Sequence[Any]) -> frozenset[int]:
    indexes = [] if value is None else value
    if not isinstance(indexes, list):
        raise _BadError("unscored", "not a list", "give messages' indexes, from 0")
    for i in indexes:
        known = isinstance(i, int) and not isinstance(i, bool) and 0 <= i < len(messages)
        role = messages[i].get("role") if known and isinstance(messages[i], dict) else None
        if role != "assistant":
            raise _BadError(
                "unscored", f"{i!r} is no assistant's message", "give their indexes, from 0"
            )
    return frozenset(indexes)


def _message(value: Any, at: str, *, taught: bool) -> Table:
    if not isinstance(value, dict):
        raise _BadError(at, "not an object", 'write {"role": …, "content": …}')
    role = _ROLES.get(str(value.get("role")))
    if role is None:
        raise _BadError(
            f"{at}.role", f"{value.get('role')!r} is unknown", f"use one of {', '.join(_ROLES)}"
        )
    message: Table = {"role": role, "content": _text(value.get("content"), f"{at}.content")}
    if role == "tool":
        message["tool_call_id"] = str(value.get("tool_call_id") or "")
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    if role == "assistant":
        reasoning = value.get("reasoning_content") or value.get("reasoning")
        if isinstance(reasoning, str):
            message["reasoning_content"] = reasoning
        if value.get("tool_calls"):
            message["tool_calls"] = _calls(value["tool_calls"], f"{at}.tool_calls", taught=taught)
    return message


def _text(value: Any, at: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for part in value if isinstance(value, list) else [None]:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise _BadError(
                at, "not text", "leave out images and other parts: the model reads text"
            )
        texts.append(text)
    return "".join(texts)


def _calls(value: Any, at: str, *, taught: bool) -> list[Table]:
    calls = []
    for i, call in enumerate(value if isinstance(value, list) else [value]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _BadError(
                f"{at}[{i}]", "no function with a name", 'write {"function": {"name": …}}'
            )
        given = function.get("arguments", "{}")
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        if taught and not _is_object(text):
            raise _BadError(
                f"{at}[{i}].function.arguments",
                "not a JSON object",
                "correct it, or name the message in `unscored`",
            )
        named = {"name": function["name"], "arguments": text}
        calls.append({"id": str(call.get("id") or ""), "type": "function", "function": named})
    return calls


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _tools(value: Any) -> tuple[Table, ...]:
    if not isinstance(value, list):
        raise _BadError("tools", "not a list", "write OpenAI's definitions of functions")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _BadError(
                f"tools[{i}]", "no function with a name", "write OpenAI's definitions of functions"
            )
    return tuple(value)
