"""Vary recorded sessions, so that how one works does not hang on the names of what one works on.

A small model learns whatever predicts the next token. If sessions in one package all run the test
first and others never do, it learns the package's name and not the habit. So each use of a
recorded session draws its habits anew, and gives its files and tests other names.
"""

import json
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from insitu.corpus.oracle import PASSED

Message = Mapping[str, Any]

_PATH = re.compile(r"(?<![\w./-])[\w.-]+(?:/[\w.-]+)*\.py\b")
_TEST_NAME = re.compile(r"(?<=\.py)((?:::[A-Za-z_]\w*)+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """How often a session is hurried; independent of each other and of the session."""

    blind: float = 0.5
    """Does not run the test before the first edit."""
    untested: float = 0.3
    """Finishes without running the test after the right edit."""
    gives_up: float = 0.3
    """Finishes after a wrong edit, at each test that fails then."""


def hurried(
    messages: Sequence[Message], unscored: Collection[int], habits: Habits, rng: random.Random
) -> tuple[list[Message], frozenset[int]]:
    """The session with some of its test runs left out or its end brought forward.

    Each result still follows from the calls before it: running the tests changes nothing, and
    a session may end anywhere.

    Args:
        messages: system, user, then pairs of one tool call and its result.
        unscored: indexes of the messages without loss.
        habits: how often each habit shows.
        rng: draws the habits.

    Returns:
        messages and the indexes without loss among them.
    """
    turns = [(i, _tool(message)) for i, message in enumerate(messages) if message.get("tool_calls")]
    drop: set[int] = set()
    end = len(messages)
    if turns and turns[0][1] == "run_tests" and rng.random() < habits.blind:
        drop |= {turns[0][0], turns[0][0] + 1}
    edits = 0
    for i, tool in turns:
        edits += tool == "edit"
        result = messages[i + 1]["content"] if i + 1 < len(messages) else ""
        if tool != "run_tests" or not edits or not result:
            continue
        if result == PASSED:
            drop |= {i, i + 1} if rng.random() < habits.untested else set()
        elif rng.random() < habits.gives_up:
            end = i + 2
            break
    kept = [i for i in range(end) if i not in drop]
    found = [messages[i] for i in kept]
    if end < len(messages):
        found.append(_finish(end))
    return found, frozenset(n for n, i in enumerate(kept) if i in set(unscored))


def _tool(message: Message) -> str:
    name: str = message["tool_calls"][0]["function"]["name"]
    return name


def _finish(number: int) -> Message:
    function = {"name": "finish", "arguments": "{}"}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def renamed(messages: Sequence[Message], words: Sequence[str], rng: random.Random) -> list[Message]:
    """The session with other names for its folders, files, test classes and tests.

    The same name becomes the same other name everywhere in the session; `test_` and `__init__`
    stay. Code, and names in it, stay too.

    Args:
        messages: the session.
        words: names to choose from.
        rng: chooses.
    """
    new = _Names(words, rng)
    return [new.message(message) for message in messages]


class _Names:
    def __init__(self, words: Sequence[str], rng: random.Random) -> None:
        self._words, self._rng = words, rng
        self._known: dict[str, str] = {}

    def message(self, message: Message) -> Message:
        found = {**message, "content": self.text(message.get("content") or "")}
        if message.get("tool_calls"):
            found["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return found

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        arguments = json.loads(call["function"]["arguments"])
        if "path" in arguments:
            arguments["path"] = self.text(arguments["path"])
        text = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": text}}

    def text(self, text: str) -> str:
        text = _PATH.sub(lambda m: self._path(m[0]), text)
        return _TEST_NAME.sub(lambda m: "::".join(map(self._test, m[1].split("::"))), text)

    def _path(self, path: str) -> str:
        folders = PurePosixPath(path).parent.parts
        stem = PurePosixPath(path).stem
        return "/".join([*map(self._name, folders), self._name(stem) + ".py"])

    def _name(self, name: str) -> str:
        if name in ("src", "tests", "test", "__init__", "__main__", ".", ".."):
            return name
        if name.startswith("test_"):
            return "test_" + self._name(name.removeprefix("test_"))
        return self._known.setdefault(name, self._rng.choice(self._words).lower())

    def _test(self, name: str) -> str:
        if name.startswith("test"):
            words = self._rng.choices(self._words, k=self._rng.choice((1, 1, 2)))
            return self._known.setdefault(name, "test_" + "_".join(words).lower())
        return (
            self._known.setdefault(name, self._rng.choice(self._words).title() + "Test")
            if (name)
            else ""
        )
