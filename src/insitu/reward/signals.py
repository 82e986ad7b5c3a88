"""Signals of an episode: its verdict, its effort, and how the product's tools were used.

Behaviour is read from the recorded calls in OpenAI chat form. Which tool of a product means
"edit" or "test" is told by a table `kind -> names`, as in `product.toml`:

    {"edit": ["edit"], "test": ["run_tests"], "finish": ["finish"]}
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from insitu.types import Call, Change, EpisodeEnd, Signal, Verdict

PASS_PATTERN = r"\A\s*passed\b"  # noqa: S105
"""What the result of a test tool begins with when all tests passed."""
_REFUSED = re.compile(r"\A\s*error\b")
"""What the result of a tool begins with that could not do what it was asked."""

NAMES = (
    "passed",
    "tests_passed",
    "finished",
    "calls",
    "sampled_tokens",
    "effort",
    "edits",
    "test_runs",
    "repeated_edits",
    "tested_before_edit",
    "finished_after_pass",
    "malformed_calls",
    "refused_calls",
    "changed_files",
)
"""Every signal that `episode_signals` gives, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUse:
    """One tool call of the agent, in the order they were sampled."""

    name: str
    arguments: str
    """Canonical JSON where the arguments are JSON, else as sampled."""
    well_formed: bool
    result: str | None
    """What the product answered; None where the episode ended before."""
    call_index: int


def episode_signals(
    episode_end: EpisodeEnd,
    calls: Sequence[Call],
    changes: Sequence[Change],
    verdict: Verdict,
    *,
    tools: Mapping[str, Sequence[str]],
    pass_pattern: str = PASS_PATTERN,
) -> tuple[Signal, ...]:
    """All signals of one episode, in the order of `NAMES`.

    - `passed`, `tests_passed` (share): the verdict.
    - `finished`: 1 where the agent ended by itself with exit code 0.
    - `calls`, `sampled_tokens`, `effort` (sampled tokens in thousands).
    - `edits`, `test_runs`: uses of these kinds of tool.
    - `repeated_edits`: edits equal to an earlier one since which no test run passed.
    - `tested_before_edit`: 1 where a test run came before the first edit.
    - `finished_after_pass`: 1 where it finished, the last test run passed, and no edit followed.
    - `malformed_calls`: tool calls whose arguments are no JSON object or whose tool is not on
      offer, and answers in which the renderer found a broken call.
    - `refused_calls`: tool calls whose result begins with the word `error`.
    - `changed_files`: paths that differ in the workspace.
    """
    uses = tool_uses(calls)
    kinds = {name: kind for kind, names in tools.items() for name in names}
    sequence = [kinds.get(u.name, "") for u in uses]
    passes = [_is_pass(u, pass_pattern) for u in uses]
    sampled = sum(len(c.result.token_ids) for c in calls)
    share = verdict.tests_passed / verdict.tests_total if verdict.tests_total else 0.0
    malformed = sum(not u.well_formed for u in uses) + sum(_broken_answer(c) for c in calls)
    values: dict[str, tuple[float, str]] = {
        "passed": (float(verdict.passed), verdict.detail),
        "tests_passed": (share, f"{verdict.tests_passed} of {verdict.tests_total} passed"),
        "finished": (float(episode_end is EpisodeEnd.FINISHED), episode_end.value),
        "calls": (len(calls), ""),
        "sampled_tokens": (sampled, ""),
        "effort": (sampled / 1000, f"{sampled} tokens"),
        "edits": (sequence.count("edit"), ""),
        "test_runs": (sequence.count("test"), ""),
        "repeated_edits": _repeated(uses, sequence, passes),
        "tested_before_edit": (_tested_first(sequence), " ".join(k or "other" for k in sequence)),
        "finished_after_pass": (_ended_well(episode_end, sequence, passes), ""),
        "malformed_calls": (malformed, ""),
        "refused_calls": (
            sum(u.result is not None and bool(_REFUSED.match(u.result)) for u in uses),
            "",
        ),
        "changed_files": (len(changes), ", ".join(c.path for c in changes[:3])),
    }
    return tuple(
        Signal(name=name, value=float(values[name][0]), evidence=values[name][1]) for name in NAMES
    )


def tool_uses(calls: Sequence[Call]) -> list[ToolUse]:
    """The agent's tool calls in order, each with the result that a later request shows."""
    requests = [_object(c.request) for c in calls]
    uses = []
    for call, request, index in zip(calls, requests, range(len(calls)), strict=True):
        offered = _offered(request)
        for asked in _tool_calls(_object(call.response)):
            function = asked.get("function") or {}
            name, raw = str(function.get("name", "")), function.get("arguments", "")
            arguments, is_object = _canonical(raw)
            result = _result_of(asked.get("id"), requests[index + 1 :])
            uses.append(
                ToolUse(
                    name=name,
                    arguments=arguments,
                    well_formed=is_object and (not offered or name in offered),
                    result=result,
                    call_index=index,
                )
            )
    return uses


def _repeated(
    uses: Sequence[ToolUse], kinds: Sequence[str], passes: Sequence[bool]
) -> tuple[float, str]:
    tried: set[tuple[str, str]] = set()
    count, first = 0, ""
    for use, kind, passed in zip(uses, kinds, passes, strict=True):
        if kind == "test" and passed:
            tried.clear()
        elif kind == "edit":
            key = (use.name, use.arguments)
            if key in tried:
                count, first = count + 1, first or use.arguments[:120]
            tried.add(key)
    return count, first


def _tested_first(kinds: Sequence[str]) -> float:
    for kind in kinds:
        if kind in ("edit", "test"):
            return float(kind == "test")
    return 0.0


def _ended_well(end: EpisodeEnd, kinds: Sequence[str], passes: Sequence[bool]) -> float:
    if end is not EpisodeEnd.FINISHED:
        return 0.0
    for kind, passed in zip(reversed(kinds), reversed(passes), strict=True):
        if kind in ("edit", "undo"):
            return 0.0
        if kind == "test":
            return float(passed)
    return 0.0


def _is_pass(use: ToolUse, pattern: str) -> bool:
    return use.result is not None and re.search(pattern, use.result) is not None


def _broken_answer(call: Call) -> bool:
    """Whether the policy's text holds the beginning of a tool call that was not understood."""
    for message in _messages_of(_object(call.response)):
        content = message.get("content")
        if isinstance(content, str) and "<tool_call>" in content:
            return True
    return False


def _object(text: str) -> dict[str, Any]:
    """A JSON object; empty where the text is none."""
    try:
        value = json.loads(text)
        return value if isinstance(value, dict) else {}
    except ValueError:
        return {}


def _messages_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = response.get("choices")
    found = [c.get("message") for c in choices or [] if isinstance(c, dict)]
    return [m for m in found if isinstance(m, dict)]


def _tool_calls(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        t
        for message in _messages_of(response)
        for t in message.get("tool_calls") or []
        if isinstance(t, dict)
    ]


def _offered(request: Mapping[str, Any]) -> set[str]:
    tools = request.get("tools") or []
    return {str((t.get("function") or {}).get("name")) for t in tools if isinstance(t, dict)}


def _canonical(raw: object) -> tuple[str, bool]:
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return str(raw), False
    return json.dumps(value, sort_keys=True), isinstance(value, dict)


def _result_of(tool_call_id: object, later: Sequence[Mapping[str, Any]]) -> str | None:
    for request in later:
        for message in request.get("messages") or []:
            if not isinstance(message, dict) or message.get("role") != "tool":
                continue
            if message.get("tool_call_id") == tool_call_id:
                return _text(message.get("content"))
    return None


def _text(content: object) -> str:
    """Plain text of a message's content, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))
