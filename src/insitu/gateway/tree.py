"""Which recorded call a new request extends: by messages first, proven by exact tokens.

A product sends its whole history with each request. Where it is a recorded call's messages,
that call's answer and something new, the next prompt is bridged from the recorded tokens, so
nothing sampled is tokenised again. In every other case the conversation is rendered anew, and
why is recorded. Differences that cannot change a token are no differences: key order and
whitespace in echoed arguments, whitespace around echoed text, left-out reasoning, other ids.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from insitu.gateway.dialects.base import Ask
from insitu.types import Call

BreakCause = Literal[
    "tools_changed",
    "system_changed",
    "answer_edited",
    "answer_dropped",
    "history_edited",
    "history_truncated",
    "restarted",
    "new_conversation",
    "resampled",
    "branched",
    "bridge_refused",
]
"""Why a call that is not the first begins a new segment. It may still extend an earlier call
whose continuation is another call's.

`tools_changed`      the same conversation with another list of tools
`system_changed`     the same conversation under another system message
`answer_edited`      the sampled turn came back changed
`answer_dropped`     the sampled turn was left out, something else follows
`history_edited`     an earlier message changed
`history_truncated`  the conversation ends earlier than before
`restarted`          only the system message is shared (a summary, a sub-agent)
`new_conversation`   nothing is shared (a sub-agent, a title)
`resampled`          the very same conversation was asked again
`branched`           the same answer was continued before (sub-agents that share a context)
`bridge_refused`     a pure continuation, but the model family's rules rewrite the prefix
"""


class Renderer(Protocol):
    """What the tree needs of a `TokenRenderer`."""

    def first(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Render a whole conversation."""
        ...

    def bridge(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...] | None:
        """Render new messages after a sampled turn."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where a request stands in the tree, and its prompt."""

    prompt_ids: tuple[int, ...]
    extends: str | None
    break_cause: BreakCause | None
    keys: tuple[bytes, ...]
    """One digest per message of the request."""
    tools: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    call_id: str
    keys: tuple[bytes, ...]
    tools: bytes
    answer: bytes
    tool_ids: tuple[str, ...]
    prompt_length: int
    ids: tuple[int, ...]
    """Prompt and sampled tokens."""


class CallTree:
    """The answered calls of one episode."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._continued: set[str | None] = set()

    def add(self, call: Call, place: Placement, answer: Mapping[str, Any]) -> None:
        """Record an answered call and the message that the product got."""
        self._continued.add(place.extends)
        self._nodes.append(
            _Node(
                call_id=call.call_id,
                keys=place.keys,
                tools=place.tools,
                answer=message_key(answer),
                tool_ids=_tool_ids(answer),
                prompt_length=len(call.prompt_ids),
                ids=call.prompt_ids + call.result.token_ids,
            )
        )

    def place(self, ask: Ask, renderer: Renderer) -> Placement:
        """Find what the request extends and make its prompt."""
        keys = tuple(message_key(m) for m in ask.messages)
        tools = hashlib.blake2b(json.dumps(ask.tools).encode(), digest_size=16).digest()
        parent = self._parent(ask, keys, tools)
        prompt = None
        if parent is not None:
            news = ask.messages[len(parent.keys) + 1 :]
            sampled = parent.ids[parent.prompt_length :]
            prompt = renderer.bridge(parent.ids[: parent.prompt_length], sampled, news, ask.tools)
            if prompt is not None and prompt[: len(parent.ids)] != parent.ids:
                prompt = None
        bridged = prompt is not None
        refused = parent is not None and not bridged
        if prompt is None:
            prompt = renderer.first(ask.messages, ask.tools)
            parent = self._longest_prefix(prompt)
        cause: BreakCause | None = None
        if parent is None or parent.call_id in self._continued:
            cause = "branched" if bridged else self._cause(ask, keys, tools, refused)
        return Placement(
            prompt_ids=prompt,
            extends=parent.call_id if parent else None,
            break_cause=cause,
            keys=keys,
            tools=tools,
        )

    def _parent(self, ask: Ask, keys: tuple[bytes, ...], tools: bytes) -> _Node | None:
        """The call whose messages and answer the request continues with anything but answers."""
        at = _last_answer(ask.messages)
        if at is None or at + 1 == len(keys):
            return None
        same = [
            n
            for n in self._nodes
            if n.tools == tools and n.answer == keys[at] and n.keys == keys[:at]
        ]
        echoed = _tool_ids(ask.messages[at])
        return next((n for n in reversed(same) if n.tool_ids == echoed), same[-1] if same else None)

    def _longest_prefix(self, prompt: tuple[int, ...]) -> _Node | None:
        known = [
            n
            for n in self._nodes
            if len(n.ids) > n.prompt_length
            and len(n.ids) < len(prompt)
            and prompt[: len(n.ids)] == n.ids
        ]
        return max(known, key=lambda n: len(n.ids), default=None)

    def _cause(
        self, ask: Ask, keys: tuple[bytes, ...], tools: bytes, refused: bool
    ) -> BreakCause | None:
        if not self._nodes:
            return None
        if refused:
            return "bridge_refused"
        if any(n.keys == keys and n.tools == tools for n in self._nodes):
            return "resampled"
        nearest = max(reversed(self._nodes), key=lambda n: _shared((*n.keys, n.answer), keys))
        shared = _shared((*nearest.keys, nearest.answer), keys)
        if nearest.tools != tools and shared >= len(nearest.keys):
            return "tools_changed"
        if shared == len(keys):
            return "history_truncated"
        if shared == len(nearest.keys):
            edited = ask.messages[shared]["role"] == "assistant"
            return "answer_edited" if edited else "answer_dropped"
        if shared == 0:
            same = any(len(n.keys) > 1 and n.keys[1:] == keys[1 : len(n.keys)] for n in self._nodes)
            return "system_changed" if same else "new_conversation"
        if shared == 1 and ask.messages[0]["role"] == "system":
            return "restarted"
        return "history_edited"


def message_key(message: Mapping[str, Any]) -> bytes:
    """Digest of what a message says; for answers, of what they mean (see the module's text)."""
    h = hashlib.blake2b(digest_size=16)
    content: str = message["content"]
    if message["role"] == "assistant":
        content = content.strip()
    parts = [message["role"], message.get("name", ""), content]
    for call in message.get("tool_calls", ()):
        parts += [call["function"]["name"], _canonical(call["function"]["arguments"])]
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.digest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()


def _tool_ids(message: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(call["id"] for call in message.get("tool_calls", ()))


def _last_answer(messages: Sequence[Mapping[str, Any]]) -> int | None:
    backwards = range(len(messages) - 1, -1, -1)
    return next((i for i in backwards if messages[i]["role"] == "assistant"), None)


def _shared(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    """How many messages two conversations begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
