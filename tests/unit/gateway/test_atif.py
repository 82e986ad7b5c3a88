"""The ATIF document keeps every exact token and follows the format's rules."""

import json
from typing import Any

from insitu.gateway.atif import trajectory
from insitu.gateway.dialects.chat import ChatDialect
from tests.unit.gateway.conftest import OpenDesk, call_text

USER = {"role": "user", "content": "fix it"}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


async def test_a_trajectory_with_a_tool_loop_and_a_branch(desk: OpenDesk) -> None:
    def plan(_: Any, prompt: str) -> str:
        return "done" if "<tool_response>" in prompt else call_text("read", line=1)

    async with desk(plan) as d:
        messages = [{"role": "system", "content": "You repair."}, USER]
        message = await d.say(messages, tools=[READ])
        call_id = message["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "1 x"})
        await d.say(messages, tools=[READ])
        await d.say([*messages[1:], USER])
        recording = d.close()
    document = trajectory(
        recording.calls,
        ChatDialect(),
        session_id="ep",
        agent_name="mender",
        agent_version="1",
        model_name="pocket",
        extra={"reward": 1.0},
    )
    assert document is not None
    assert json.loads(json.dumps(document)) == document
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["extra"] == {"reward": 1.0}
    assert document["agent"]["tool_definitions"] == [READ]
    steps = document["steps"]
    assert [s["step_id"] for s in steps] == [1, 2, 3, 4]
    assert [s["source"] for s in steps] == ["system", "user", "agent", "agent"]
    assert steps[2]["tool_calls"] == [
        {"tool_call_id": call_id, "function_name": "read", "arguments": {"line": 1}}
    ]
    assert steps[2]["observation"]["results"] == [{"content": "1 x", "source_call_id": call_id}]
    for step, call in zip(steps[2:], recording.calls[:2], strict=True):
        metrics = step["metrics"]
        assert metrics["prompt_token_ids"] == list(call.prompt_ids)
        assert metrics["completion_token_ids"] == list(call.result.token_ids)
        assert metrics["logprobs"] == list(call.result.logprobs)
        assert metrics["extra"]["versions"] == list(call.result.versions)
    (branch,) = document["subagent_trajectories"]
    assert branch["trajectory_id"] != document["trajectory_id"]
    assert branch["extra"]["cause"] == recording.calls[2].break_cause
    copied = [s.get("is_copied_context") for s in branch["steps"] if s["source"] == "agent"]
    assert copied == [True, True, None]


async def test_nothing_sampled_gives_no_document() -> None:
    assert (
        trajectory(
            (), ChatDialect(), session_id="e", agent_name="a", agent_version="1", model_name="m"
        )
        is None
    )
