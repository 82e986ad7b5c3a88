"""OpenAI Chat Completions.

Bodies are checked by hand: only what is used is looked at, so that a request with a long
history costs no more than reading its JSON.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from insitu.gateway.dialects.base import Ask, Cause, Reply, RequestError
from insitu.render.turns import ParsedTurn

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_USED: Final = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stream",
        "stream_options",
        "n",
    }
)
_ERRORS: Final[dict[Cause, tuple[int, str, str | None]]] = {
    "bad_request": (400, "invalid_request_error", None),
    "bad_key": (401, "invalid_request_error", "invalid_api_key"),
    "gateway_fault": (500, "server_error", "internal_error"),
    "turn_limit": (403, "permission_error", "turn_limit"),
    "context_limit": (400, "invalid_request_error", "context_length_exceeded"),
    "not_found": (404, "invalid_request_error", "not_found"),
    "closed": (403, "permission_error", "session_closed"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "engine_fault": (503, "server_error", "engine_unavailable"),
}
"""Cause → HTTP status, `type`, `code`."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class ChatDialect:
    """`POST /v1/chat/completions`."""

    name = "chat"

    def key(self, headers: Mapping[str, str]) -> str:
        """The bearer token."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def read(self, body: bytes) -> Ask:
        """Understand a request; unknown fields are accepted and named in `Ask.ignored`."""
        data = _object(body)
        if data.get("n") not in (None, 1):
            raise RequestError(
                "bad_request", "only n=1 is supported: send several requests", param="n"
            )
        tools = _tools(data.get("tools"))
        calls, unheld = _tool_choice(data, tools)
        options = data.get("stream_options") or {}
        return Ask(
            model=str(data.get("model") or ""),
            messages=_messages(data.get("messages")),
            tools=tools,
            stop=_stop(data.get("stop")),
            max_tokens=_max_tokens(data),
            sampling=_sampling(data),
            stream=bool(data.get("stream")),
            stream_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            calls_allowed=calls,
            ignored=(*sorted(data.keys() - _USED), *unheld),
        )

    def answer(self, answer: Reply) -> bytes:
        """A `chat.completion` object."""
        message = {"refusal": None} | self.message(answer.turn)
        if not message["content"] and answer.turn.tool_calls:
            message["content"] = None
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(answer),
        }
        head = _head(answer, "chat.completion")
        return json.dumps(head | {"choices": [choice], "usage": _usage(answer)}).encode()

    def stream(self, answer: Reply, ask: Ask) -> Iterator[bytes]:
        """`chat.completion.chunk` events: role, text, each tool call, the finish, the usage."""
        head = _head(answer, "chat.completion.chunk")

        def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
            usage = {"usage": None} if ask.stream_usage else {}
            return b"data: %b\n\n" % json.dumps(head | {"choices": choices} | usage | more).encode()

        def delta(finish: str | None = None, **change: Any) -> bytes:
            return event([{"index": 0, "delta": change, "logprobs": None, "finish_reason": finish}])

        yield delta(role="assistant", content="")
        if answer.turn.reasoning:
            yield delta(reasoning_content=answer.turn.reasoning)
        if answer.turn.content:
            yield delta(content=answer.turn.content)
        for index, call in enumerate(answer.turn.tool_calls):
            function = {"name": call.name, "arguments": ""}
            opening = {"index": index, "id": call.id, "type": "function", "function": function}
            yield delta(tool_calls=[opening])
            yield delta(tool_calls=[{"index": index, "function": {"arguments": call.arguments}}])
        yield delta(_finish_reason(answer))
        if ask.stream_usage:
            yield event([], usage=_usage(answer))
        yield b"data: [DONE]\n\n"

    def error(self, problem: RequestError) -> tuple[int, bytes]:
        """OpenAI's error object."""
        status, kind, code = _ERRORS[problem.cause]
        error = {
            "message": problem.message,
            "type": kind,
            "param": problem.param or None,
            "code": code,
        }
        return status, json.dumps({"error": error}).encode()

    def message(self, turn: ParsedTurn) -> dict[str, Any]:
        """The assistant's message."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [
                _tool_call(call.id, call.name, call.arguments) for call in turn.tool_calls
            ]
        return message

    def answered(self, body: str) -> dict[str, Any]:
        """The message of the first choice."""
        return _message(json.loads(body)["choices"][0]["message"], "message")


def _tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _head(answer: Reply, kind: str) -> dict[str, Any]:
    # Hashed: an episode's name is none of the product's business.
    name = hashlib.blake2b(answer.call_id.encode(), digest_size=14).hexdigest()
    return {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "system_fingerprint": f"policy-{answer.version}",
    }


def _usage(answer: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _finish_reason(answer: Reply) -> str:
    if answer.finish == "stop" and answer.turn.tool_calls:
        return "tool_calls"
    return answer.finish


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body.decode())
        if _SURROGATE.search(body):
            data = _whole_characters(data)
    except (ValueError, RecursionError):
        raise RequestError("bad_request", "the body is not valid JSON") from None
    if not isinstance(data, dict):
        raise RequestError("bad_request", "the body is not a JSON object")
    return data


def _whole_characters(value: Any) -> Any:
    """`value` with half surrogate pairs, which no tokenizer takes, as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_characters(v) for v in value]
    if isinstance(value, dict):
        return {_whole_characters(k): _whole_characters(v) for k, v in value.items()}
    return value


def _messages(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise RequestError(
            "bad_request", "messages must be a list with at least one", param="messages"
        )
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(value))


def _message(value: Any, at: str) -> dict[str, Any]:
    role = _ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise RequestError("bad_request", f"{at} needs a role, one of {known}", param=at)
    message: dict[str, Any] = {"role": role, "content": _text(value.get("content"), at)}
    if role == "tool":
        message["tool_call_id"] = str(value.get("tool_call_id") or "")
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    if role == "assistant":
        reasoning = value.get("reasoning_content") or value.get("reasoning")
        if isinstance(reasoning, str):
            message["reasoning_content"] = reasoning
        if value.get("tool_calls"):
            message["tool_calls"] = _echoed_calls(value["tool_calls"], at)
    return message


def _text(content: Any, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError("bad_request", f"{at}.content must be text or a list of parts", param=at)
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get(kind) if isinstance(part, dict) else part
        if kind not in ("text", "refusal") or not isinstance(text, str):
            raise RequestError(
                "bad_request", f"{at}: this model takes text only, not {kind!r} parts", param=at
            )
        texts.append(text)
    return "".join(texts)


def _echoed_calls(value: Any, at: str) -> list[dict[str, Any]]:
    calls = []
    for call in value if isinstance(value, list) else [value]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                "bad_request", f"{at}.tool_calls must be calls of functions with a name", param=at
            )
        arguments = function.get("arguments", "{}")
        text = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
        calls.append(_tool_call(str(call.get("id") or ""), function["name"], text))
    return calls


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | None):
        raise RequestError("bad_request", "tools must be a list", param="tools")
    for index, tool in enumerate(value or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            at = f"tools[{index}]"
            raise RequestError("bad_request", f"{at} must be a function with a name", param=at)
    return tuple(value or ())


def _tool_choice(
    data: dict[str, Any], tools: tuple[dict[str, Any], ...]
) -> tuple[int | None, tuple[str, ...]]:
    """How many tool calls the answer may carry, and what was asked for but cannot be held."""
    choice = data.get("tool_choice")
    if choice == "none":
        return 0, ()
    unheld = ("tool_choice",) if choice not in (None, "auto") and tools else ()
    return (1 if data.get("parallel_tool_calls") is False else None), unheld


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise RequestError("bad_request", "stop must be a text or a list of texts", param="stop")
    return tuple(t for t in texts if t)


def _max_tokens(data: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestError("bad_request", f"{name} must be a positive whole number", param=name)
        return value
    return None


def _sampling(data: dict[str, Any]) -> dict[str, float]:
    asked = {}
    for name, low, high in (
        ("temperature", 0.0, 2.0),
        ("top_p", 0.0, 1.0),
        ("top_k", -1, 1 << 31),
        ("seed", -(1 << 63), 1 << 63),
    ):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not low <= value <= high:
            raise RequestError("bad_request", f"{name} must be within {low} and {high}", param=name)
        asked[name] = value
    return asked
