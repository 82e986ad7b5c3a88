"""An episode's calls as an ATIF v1.8 trajectory with exact token ids and log-probabilities.

One trajectory per segment: the first is the root, every other one (a sub-agent, a summarised
history, a branch) is embedded in `subagent_trajectories` and says in `extra` why it began.
ATIF has no place for the policy version of a token or a call's finish; they are in the
metrics' `extra`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from insitu.gateway.dialects.base import Dialect
from insitu.gateway.segments import stitch
from insitu.types import Call


def trajectory(
    calls: Sequence[Call],
    dialect: Dialect,
    *,
    session_id: str,
    agent_name: str,
    agent_version: str,
    model_name: str,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """The episode as a JSON-ready document, or None if nothing was sampled.

    `dialect` is the one the calls were made in; `extra` goes to the root (a reward, say).
    """
    by_id = {call.call_id: call for call in calls}
    chains = [[by_id[i] for i in segment.call_ids] for segment in stitch(calls)]
    chains.sort(key=lambda chain: chain[0].index)
    agent = {"name": agent_name, "version": agent_version, "model_name": model_name}
    documents = []
    for number, chain in enumerate(chains):
        tools = dialect.read(chain[0].request.encode()).tools
        document = {
            "schema_version": "ATIF-v1.8",
            "session_id": session_id,
            "trajectory_id": f"{session_id}.{number}",
            "agent": agent | ({"tool_definitions": list(tools)} if tools else {}),
            "steps": _steps(chain, dialect),
            "final_metrics": _totals(chain),
        }
        if chain[0].break_cause or chain[0].extends:
            cause = chain[0].break_cause or "branched"
            document["extra"] = {"cause": cause, "extends": chain[0].extends}
        documents.append(document)
    if not documents:
        return None
    root, *others = documents
    if others:
        root["subagent_trajectories"] = others
    if extra:
        root["extra"] = dict(extra)
    return root


def _steps(chain: Sequence[Call], dialect: Dialect) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    seen = 0
    for call in chain:
        messages = dialect.read(call.request.encode()).messages
        for message in messages[seen:]:
            _add_message(steps, message)
        seen = len(messages) + 1
        steps.append(_agent_step(call, dialect.answered(call.response)))
    for number, step in enumerate(steps):
        step["step_id"] = number + 1
    return steps


def _add_message(steps: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    role = message["role"]
    if role == "assistant":
        steps.append(_said(message) | {"is_copied_context": True})
    elif role == "tool":
        result = {"content": message["content"]}
        asked = [s for s in steps if message["tool_call_id"] in _ids(s)]
        if asked:
            result["source_call_id"] = message["tool_call_id"]
        elif not steps:
            steps.append({"source": "user", "message": ""})
        step = asked[-1] if asked else steps[-1]
        step.setdefault("observation", {"results": []})["results"].append(result)
    else:
        steps.append({"source": role, "message": message["content"]})


def _ids(step: Mapping[str, Any]) -> list[str]:
    return [call["tool_call_id"] for call in step.get("tool_calls", ())]


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": _arguments(call["function"]["arguments"]),
            }
            for call in message["tool_calls"]
        ]
    return step


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"text": text}


def _agent_step(call: Call, message: Mapping[str, Any]) -> dict[str, Any]:
    result = call.result
    return _said(message) | {
        "timestamp": datetime.fromtimestamp(call.started_at, UTC).isoformat(),
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": len(call.prompt_ids),
            "completion_tokens": len(result.token_ids),
            "cached_tokens": result.cached_tokens,
            "prompt_token_ids": list(call.prompt_ids),
            "completion_token_ids": list(result.token_ids),
            "logprobs": list(result.logprobs),
            "extra": {"versions": list(result.versions), "finish": result.finish},
        },
        "extra": {"call_id": call.call_id, "latency_s": call.latency_s},
    }


def _totals(chain: Sequence[Call]) -> dict[str, Any]:
    return {
        "total_prompt_tokens": sum(len(c.prompt_ids) for c in chain),
        "total_completion_tokens": sum(len(c.result.token_ids) for c in chain),
        "total_cached_tokens": sum(c.result.cached_tokens for c in chain),
    }
