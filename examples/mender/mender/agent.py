"""The loop: ask the model, do what it asks for, show it the result."""

import json
from typing import Any, Protocol

from mender import texts


class Chat(Protocol):
    def chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]: ...


class Hands(Protocol):
    finished: bool

    def use(self, name: str, arguments: dict[str, Any]) -> str: ...


def run(client: Chat, tools: Hands, issue: str, max_steps: int) -> bool:
    """Work on the issue; True when the model called `finish`, False when it ran out of steps.

    The conversation only ever grows: nothing that was sent is changed later.
    """
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": texts.SYSTEM},
        {"role": "user", "content": issue},
    ]
    definitions = texts.tools()
    for _ in range(max_steps):
        reply = client.chat(messages, definitions)
        messages.append(reply)
        calls = reply.get("tool_calls", [])
        if not calls:
            messages.append({"role": "user", "content": texts.NO_CALL})
        for call in calls:
            result = _do(tools, call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if tools.finished:
                return True
    return False


def _do(tools: Hands, function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        return texts.ERROR.format(problem=texts.NOT_JSON)
    return tools.use(function["name"], arguments)
