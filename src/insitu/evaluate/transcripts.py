"""Episodes as conversations that a person can read, and which ones are worth reading."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from insitu.types import Episode, EpisodeEnd

Kind = Literal["solved", "lost", "unsolved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCall:
    """One tool call of the policy and what came back.

    Example: `ShownCall(name="read", arguments='path="a.py", line=3', result="3 x = 1")`.
    """

    name: str
    arguments: str
    result: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One reply of the policy, or (`role` other than `assistant`) a message it was given."""

    role: str
    text: str
    tools: tuple[ShownCall, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeText:
    """One episode, to be read."""

    passed: bool
    reward: float
    end: str
    tokens: int
    """Sampled."""
    turns: tuple[Turn, ...]
    """Without the system prompt and the task's instruction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """One task before and after training.

    Example: `Transcript(kind="solved", task_id="toolz-12", instruction="…", before=…, after=…)`.
    """

    kind: Kind
    """`solved`: became solved; `lost`: was solved before only; `unsolved`: never solved."""
    task_id: str
    instruction: str
    rate_before: float
    rate_after: float
    before: EpisodeText
    after: EpisodeText


def conversation(episode: Episode, *, passed: str = "passed") -> EpisodeText:
    """What was said in an episode: its last request, and the reply to it.

    Where the product rewrites its history, this is the last state of it.
    """
    messages = _messages(episode)
    first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), -1)
    return EpisodeText(
        passed=episode.signal(passed) >= 1.0,
        reward=episode.reward.value,
        end=episode.end.value,
        tokens=sum(len(call.result.token_ids) for call in episode.calls),
        turns=_turns(messages[first + 1 :]),
    )


def first_request(episode: Episode) -> str:
    """The first user message of an episode; empty without a call."""
    return next((_text(m) for m in _messages(episode) if m.get("role") == "user"), "")


def choose_transcripts(
    before: Sequence[Episode], after: Sequence[Episode], *, passed: str = "passed"
) -> tuple[Transcript, ...]:
    """One task that became solved, one that was lost, one never solved; those there are.

    The task with the largest change in pass rate is taken, then the one with the fewest calls.
    """
    old, new = _by_task(before), _by_task(after)
    shared = sorted(old.keys() & new.keys())

    def rate(episodes: Sequence[Episode]) -> float:
        return sum(e.signal(passed) >= 1.0 for e in episodes) / len(episodes)

    rates = {task: (rate(old[task]), rate(new[task])) for task in shared}
    wanted: dict[Kind, Callable[[str], bool]] = {
        "solved": lambda t: rates[t][1] > rates[t][0],
        "lost": lambda t: rates[t][1] < rates[t][0],
        "unsolved": lambda t: rates[t] == (0.0, 0.0),
    }
    chosen = []
    for kind, fits in wanted.items():
        tasks = [task for task in shared if fits(task)]
        if not tasks:
            continue
        task = min(tasks, key=lambda t: (-abs(rates[t][1] - rates[t][0]), _reading(new[t]), t))
        was = _pick(old[task], kind == "lost", passed)
        now = _pick(new[task], kind == "solved", passed)
        chosen.append(
            Transcript(
                kind=kind,
                task_id=task,
                instruction=first_request(now) or first_request(was),
                rate_before=rates[task][0],
                rate_after=rates[task][1],
                before=conversation(was, passed=passed),
                after=conversation(now, passed=passed),
            )
        )
    return tuple(chosen)


def _by_task(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    found: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.end is not EpisodeEnd.FAULT:
            found.setdefault(episode.task_id, []).append(episode)
    return found


def _reading(episodes: Sequence[Episode]) -> float:
    """Calls of the shortest episode that has any."""
    return min((len(e.calls) for e in episodes if e.calls), default=float("inf"))


def _pick(episodes: Sequence[Episode], solved: bool, passed: str) -> Episode:
    """The shortest episode with the wanted outcome, else the shortest."""
    fitting = [e for e in episodes if (e.signal(passed) >= 1.0) == solved] or list(episodes)
    return min(fitting, key=lambda e: (not e.calls, len(e.calls), e.attempt))


def _messages(episode: Episode) -> list[dict[str, Any]]:
    if not episode.calls:
        return []
    last = episode.calls[-1]
    try:
        messages = list(json.loads(last.request).get("messages", []))
    except (ValueError, AttributeError, TypeError):
        return [{"role": "assistant", "content": last.response}]
    try:
        messages.append(json.loads(last.response)["choices"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        messages.append({"role": "assistant", "content": last.response})
    return [m for m in messages if isinstance(m, dict)]


def _turns(messages: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
    results = {m.get("tool_call_id"): _text(m) for m in messages if m.get("role") == "tool"}
    return tuple(
        Turn(
            role=str(m.get("role", "")),
            text=_text(m),
            tools=tuple(_tool_use(call, results) for call in m.get("tool_calls") or ()),
        )
        for m in messages
        if m.get("role") != "tool"
    )


def _tool_use(call: Any, results: dict[Any, str]) -> ShownCall:
    function = call.get("function", {})
    given = function.get("arguments", "")
    try:
        fields = json.loads(given or "{}")
        given = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()
        )
    except (ValueError, AttributeError):
        pass  # not JSON: shown as it is, since that is what the policy wrote
    return ShownCall(
        name=str(function.get("name", "")), arguments=given, result=results.get(call.get("id"), "")
    )


def _text(message: dict[str, Any]) -> str:
    """The text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)
