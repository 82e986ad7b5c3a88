"""The gateway over real HTTP: what a product sees, and what is recorded."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from insitu.gateway.server import GatewayLimits
from insitu.types import EngineError, Sampling, UsageError
from tests.unit.gateway.conftest import OpenDesk, call_text

USER = {"role": "user", "content": "fix it"}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def hello(*_: Any) -> str:
    return "hello"


async def test_a_plain_answer(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        response = await d.post([USER])
        body = response.json()
        assert body["object"] == "chat.completion"
        assert body["model"] == "m"
        assert body["choices"][0]["message"]["content"] == "hello"
        assert body["choices"][0]["finish_reason"] == "stop"
        call = d.close().calls[0]
        assert body["usage"]["prompt_tokens"] == len(call.prompt_ids)
        assert body["usage"]["completion_tokens"] == len(call.result.token_ids)
        assert json.loads(call.response) == body
        assert json.loads(call.request) == {"model": "m", "messages": [USER]}
        assert call.latency_s > 0


async def test_a_tool_loop_is_one_segment_of_exactly_the_sampled_tokens(desk: OpenDesk) -> None:
    def plan(request: Any, prompt: str) -> str:
        turns = prompt.count("<tool_response>")
        return "done" if turns == 3 else call_text("read", path="a.py", line=turns)

    async with desk(plan) as d:
        messages = [{"role": "system", "content": "You repair."}, USER]
        for turn in range(4):
            message = await d.say(messages, tools=[READ])
            for call in message.get("tool_calls") or ():
                assert json.loads(call["function"]["arguments"])["line"] == turn
                messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": f"{turn} x = 1"}
                )
        recording = d.close()
    assert [c.extends for c in recording.calls] == [None, "ep.0", "ep.1", "ep.2"]
    assert [c.break_cause for c in recording.calls] == [None] * 4
    (segment,) = recording.segments
    assert segment.call_ids == ("ep.0", "ep.1", "ep.2", "ep.3")
    sampled = [t for t, on in zip(segment.token_ids, segment.trainable, strict=True) if on]
    assert sampled == [t for c in recording.calls for t in c.result.token_ids]
    assert recording.stop == ""


async def test_echo_with_other_spelling_still_extends(desk: OpenDesk) -> None:
    async with desk(lambda *_: "Look. " + call_text("read", path="a.py", line=3)) as d:
        messages: list[dict[str, Any]] = [USER]
        message = await d.say(messages)
        arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
        compact = json.dumps(dict(reversed(arguments.items())), separators=(",", ":"))
        messages[-1] = {
            "role": "assistant",
            "content": [{"type": "text", "text": " Look.\n"}],
            "tool_calls": [{"id": "other", "function": {"name": "read", "arguments": compact}}],
        }
        messages.append({"role": "tool", "tool_call_id": "other", "content": "x"})
        await d.say(messages)
        assert d.close().calls[1].extends == "ep.0"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda m: [{"role": "system", "content": "B"}, *m[1:]], "system_changed"),
        (lambda m: [m[0], USER, *m[2:]], "restarted"),
        (lambda m: [*m[:2], {"role": "assistant", "content": "edited"}, USER], "answer_edited"),
        (lambda m: [*m[:2], USER], "answer_dropped"),
        (lambda m: m[:1], "history_truncated"),
        (lambda m: [USER], "new_conversation"),
        (lambda m: [*m[:2], {"role": "user", "content": "mid"}, *m[2:]], "answer_dropped"),
    ],
)
async def test_a_break_is_a_new_segment_with_its_cause(
    desk: OpenDesk, change: Any, cause: str
) -> None:
    async with desk(hello) as d:
        messages = [{"role": "system", "content": "A"}, {"role": "user", "content": "first"}]
        await d.say(messages)
        messages.append({"role": "user", "content": "more"})
        await d.say(change(messages))
        recording = d.close()
    assert recording.calls[1].break_cause == cause
    assert recording.calls[1].extends is None
    assert recording.breaks == {cause: 1}
    assert len(recording.segments) == 2


async def test_other_tools_and_edited_history_break(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        messages = [{"role": "user", "content": "a"}]
        await d.say(messages, tools=[READ])
        messages.append(USER)
        await d.say(list(messages))
        await d.say(messages, tools=[READ])
        messages.append(USER)
        messages[2] = {"role": "user", "content": "changed"}
        await d.say(messages, tools=[READ])
        causes = [c.break_cause for c in d.close().calls]
    assert causes == [None, "tools_changed", None, "history_edited"]


async def test_malformed_tool_calls_reach_the_product_as_text(desk: OpenDesk) -> None:
    broken = "<tool_call>\n{broken\n</tool_call>"
    async with desk(lambda *_: broken) as d:
        messages: list[dict[str, Any]] = [USER]
        message = await d.say(messages)
        assert message["content"] == broken
        assert "tool_calls" not in message
        messages.append({"role": "user", "content": "That was no call."})
        await d.say(messages)
        assert d.close().calls[1].extends == "ep.0"


async def test_streaming_gives_deltas_usage_and_done(desk: OpenDesk) -> None:
    async with desk(lambda *_: "I look. " + call_text("read", line=1)) as d:
        response = await d.post([USER], stream=True, stream_options={"include_usage": True})
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [e.removeprefix("data: ") for e in response.text.split("\n\n") if e]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(e) for e in events[:-1]]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        deltas = [c["choices"][0]["delta"] for c in chunks[:-1]]
        assert "".join(x.get("content") or "" for x in deltas) == "I look."
        calls = [c for x in deltas for c in x.get("tool_calls", ())]
        assert calls[0]["function"]["name"] == "read"
        assert "".join(c["function"]["arguments"] for c in calls) == '{"line": 1}'
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert len(d.close().calls) == 1


async def test_a_slow_stream_is_kept_alive_and_can_fail(desk: OpenDesk) -> None:
    limits = GatewayLimits(keepalive_s=0.02, patience_s=0.0)
    async with desk(hello, limits=limits) as d:
        d.engine.hold = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, d.engine.hold.set)
        response = await d.post([USER], stream=True)
        assert response.text.startswith(": keep-alive\n\n")
        assert response.text.endswith("data: [DONE]\n\n")

        def fail(*_: Any) -> str:
            raise EngineError("gone")

        d.engine.plan, d.engine.hold = fail, asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, d.engine.hold.set)
        response = await d.post([USER, USER], stream=True)
        assert '"code": "engine_unavailable"' in response.text
        assert d.close().stop == "engine_fault"


async def test_wrong_and_expired_keys_are_401(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        good, d.key = d.key, "sk-wrong"
        response = await d.post([USER])
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        d.key = good
        d.close()
        assert (await d.post([USER])).status_code == 401
        with pytest.raises(UsageError, match="no open session"):
            d.close()
        response = await d.client.post("/v1/chat/completions", content=b"{}")
        assert response.status_code == 401


async def test_sessions_do_not_see_each_other(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        first = d.key
        messages: list[dict[str, Any]] = [USER]
        await d.say(messages)
        d.open("other")
        await d.say([*messages, USER])
        other, one = d.close(), d.gateway.close(first)
    assert [c.episode_id for c in one.calls] == ["ep"]
    assert [c.extends for c in other.calls] == [None]


async def test_the_call_limit(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        d.open("short", max_calls=1)
        messages: list[dict[str, Any]] = [USER]
        await d.say(messages)
        response = await d.post([*messages, USER])
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "turn_limit"
        recording = d.close()
        assert (recording.stop, len(recording.calls)) == ("turn_limit", 1)


async def test_context_overflow_and_clipping(desk: OpenDesk) -> None:
    async with desk(lambda *_: "word " * 50, context=64) as d:
        messages: list[dict[str, Any]] = [USER]
        message = await d.say(messages)
        call = d.engine.requests[0]
        assert call.sampling.max_tokens == 64 - len(call.prompt_ids)
        assert message["content"].startswith("word")
        response = await d.post([*messages, USER])
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert d.close().stop == "context_limit"


async def test_a_product_that_recovers_from_overflow_has_no_stop(desk: OpenDesk) -> None:
    async with desk(hello, context=64) as d:
        assert (await d.post([{"role": "user", "content": "x" * 500}])).status_code == 400
        await d.say([USER])
        assert d.close().stop == ""


async def test_max_tokens_of_request_and_session_both_hold(desk: OpenDesk) -> None:
    async with desk(lambda *_: "a b c d e f g h") as d:
        response = await d.post([USER], max_completion_tokens=3)
        assert response.json()["choices"][0]["finish_reason"] == "length"
        await d.post([USER], max_tokens=500)
        assert [r.sampling.max_tokens for r in d.engine.requests] == [3, 64]


async def test_sampling_policy(desk: OpenDesk) -> None:
    asked = {"temperature": 0.2, "top_p": 0.5, "seed": 3}
    async with desk(hello) as d:
        await d.post([USER], **asked, logit_bias={}, metadata={"a": 1})
        used = d.engine.requests[0].sampling
        assert (used.temperature, used.top_p) == (1.0, 1.0)
        recording = d.close()
        assert recording.overridden == {"temperature": 1, "top_p": 1, "seed": 1}
        assert recording.ignored == {"logit_bias": 1, "metadata": 1}
    async with desk(hello, sampling_policy="honour") as d:
        await d.post([USER], **asked)
        assert d.engine.requests[0].sampling == Sampling(
            temperature=0.2, top_p=0.5, seed=3, max_tokens=64
        )
        assert d.close().overridden == {}


async def test_seeds_repeat_with_the_session_and_differ_between_calls(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        seeds = []
        for seed in (7, 7, 8):
            d.open("again", seed=seed)
            messages: list[dict[str, Any]] = [USER]
            await d.say(messages)
            await d.say([*messages, USER])
            seeds.append([r.sampling.seed for r in d.engine.requests[-2:]])
        assert seeds[0] == seeds[1]
        assert len({*seeds[0], *seeds[2]}) == 4


async def test_stop_texts_cut_the_turn_where_the_engine_would_have(desk: OpenDesk) -> None:
    async with desk(lambda *_: "one two STOP three") as d:
        messages: list[dict[str, Any]] = [USER]
        message = await d.say(messages, stop=["STOP"])
        assert message["content"].strip() == "one two"
        await d.say([*messages, USER], stop="STOP")
        first, second = d.close().calls
        assert d.engine.renderer.decode(first.result.token_ids).endswith("STOP")
        assert len(first.result.logprobs) == len(first.result.token_ids)
        assert second.extends == first.call_id


async def test_tool_choice_none_and_parallel_calls_off(desk: OpenDesk) -> None:
    two = call_text("read", line=1) + "\n" + call_text("read", line=2)
    async with desk(lambda *_: two) as d:
        assert len((await d.say([USER]))["tool_calls"]) == 2
        assert len((await d.say([USER], parallel_tool_calls=False))["tool_calls"]) == 1
        message = await d.say([USER], tool_choice="none")
        assert message["content"] == two
        await d.say([USER], tools=[READ], tool_choice="required")
        assert d.close().ignored == {"tool_choice": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "messages must be a list"),
        (b'{"messages": []}', "messages must be a list"),
        (b'{"messages": [{"role": "robot"}]}', "needs a role"),
        (b'{"messages": [7]}', "needs a role"),
        (b'{"messages": [{"role": "user", "content": 7}]}', "content must be text"),
        (b'{"messages": [{"role": "user"}], "n": 2}', "only n=1"),
        (b'{"messages": [{"role": "user"}], "max_tokens": 0}', "positive whole number"),
        (b'{"messages": [{"role": "user"}], "temperature": "hot"}', "temperature must be"),
        (b'{"messages": [{"role": "user"}], "tools": [{"type": "custom"}]}', "tools[0] must be"),
        (b'{"messages": [{"role": "user"}], "tools": {}}', "tools must be a list"),
        (b'{"messages": [{"role": "user"}], "stop": [1]}', "stop must be"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "takes text only, not 'image_url'",
        ),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(desk: OpenDesk, body: bytes, words: str) -> None:
    async with desk(hello) as d:
        response = await d.raw(body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert d.close().calls == ()


async def test_odd_but_legal_bodies_are_answered(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        odd = [
            {"role": "developer", "content": None},
            {"role": "user", "content": "half \ud800 pair", "name": "bob"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
            {"role": "function", "name": "f", "content": "r"},
            {"role": "system", "content": [{"type": "text", "text": "late"}, "x"]},
        ]
        await d.say(odd)
        assert "half � pair" in d.engine.renderer.decode(d.close().calls[0].prompt_ids)


async def test_too_large_requests_are_refused(desk: OpenDesk) -> None:
    async with desk(hello, limits=GatewayLimits(body_bytes=1000)) as d:
        response = await d.post([{"role": "user", "content": "x" * 2000}])
        assert response.status_code == 413


async def test_a_retry_replays_and_an_insistent_product_gets_a_new_answer(desk: OpenDesk) -> None:
    async with desk(lambda request, _: f"answer {request.request_id}") as d:
        said = [(await d.say([USER]))["content"] for _ in range(4)]
        assert said == ["answer ep.0"] * 3 + ["answer ep.1"]
        await d.say([USER, USER])
        assert (await d.say([USER]))["content"] == "answer ep.3"
        body = json.dumps({"model": "m", "messages": [USER, USER]}).encode()
        again = await d.raw(body, **{"x-stainless-retry-count": "1"})
        assert again.json()["choices"][0]["message"]["content"] == "answer ep.2"
        recording = d.close()
    assert recording.replays == 3
    assert [c.break_cause for c in recording.calls] == [
        None,
        "resampled",
        "answer_dropped",
        "resampled",
    ]


async def test_identical_requests_in_flight_are_sampled_once(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        d.engine.hold = asyncio.Event()
        one, two = asyncio.create_task(d.post([USER])), asyncio.create_task(d.post([USER]))
        await asyncio.sleep(0.1)
        d.engine.hold.set()
        assert (await one).json() == (await two).json()
        assert len(d.engine.requests) == 1
        assert len(d.close().calls) == 1


async def test_one_waiter_that_leaves_does_not_take_the_answer_from_the_other(
    desk: OpenDesk,
) -> None:
    async with desk(hello) as d:
        d.engine.hold = asyncio.Event()
        one, two = asyncio.create_task(d.post([USER])), asyncio.create_task(d.post([USER]))
        await asyncio.sleep(0.1)
        one.cancel()
        await asyncio.sleep(0.1)
        d.engine.hold.set()
        assert (await two).status_code == 200
        assert d.engine.cancelled == 0


async def test_two_continuations_of_one_answer_are_branches(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        messages: list[dict[str, Any]] = [USER]
        await d.say(messages)
        await d.say([*messages, {"role": "user", "content": "a"}])
        await d.say([*messages, {"role": "user", "content": "b"}])
        recording = d.close()
    assert [c.extends for c in recording.calls] == [None, "ep.0", "ep.0"]
    assert [c.break_cause for c in recording.calls] == [None, None, "branched"]
    assert [s.call_ids for s in recording.segments] == [("ep.0", "ep.1"), ("ep.2",)]


def test_the_room_imports_without_torch_and_transformers() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import insitu.gateway.server, insitu.gateway.atif, insitu.gateway.dialects.chat\n"
        "assert 'renderers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_disconnect_cancels_and_the_retry_samples_with_the_same_seed(
    desk: OpenDesk,
) -> None:
    async with desk(hello) as d:
        d.engine.hold = asyncio.Event()
        waiting = asyncio.create_task(d.post([USER]))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.sleep(0.1)
        assert d.engine.cancelled == 1
        d.engine.hold.set()
        await d.say([USER])
        recording = d.close()
    assert [c.result.finish for c in recording.calls] == ["cancelled", "stop"]
    assert [c.index for c in recording.calls] == [0, 1]
    assert len(recording.segments) == 1
    assert len({r.sampling.seed for r in d.engine.requests}) == 1


async def test_closing_ends_calls_in_flight(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        d.engine.hold = asyncio.Event()
        waiting = asyncio.create_task(d.post([USER]))
        await asyncio.sleep(0.1)
        recording = d.close()
        assert [c.result.finish for c in recording.calls] == ["cancelled"]
        assert (await waiting).status_code == 403
        assert d.engine.cancelled == 1


async def test_an_engine_that_comes_back_is_only_slow(desk: OpenDesk) -> None:
    failures = iter([EngineError("restarting"), EngineError("restarting")])

    def plan(*_: Any) -> str:
        for failure in failures:
            raise failure
        return "hello"

    async with desk(plan) as d:
        await d.say([USER])
        recording = d.close()
    assert [f.boundary for f in recording.faults] == ["engine", "engine"]
    assert recording.stop == ""


async def test_an_engine_that_stays_away_is_a_fault(desk: OpenDesk) -> None:
    def plan(*_: Any) -> str:
        raise EngineError("dead")

    async with desk(plan, limits=GatewayLimits(patience_s=0.1)) as d:
        response = await d.post([USER])
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert response.json()["error"]["type"] == "server_error"
        recording = d.close()
    assert recording.stop == "engine_fault"
    assert recording.segments == ()


async def test_a_stuck_engine_is_asked_again(desk: OpenDesk) -> None:
    async with desk(hello, limits=GatewayLimits(attempt_s=0.05)) as d:
        d.engine.hold = asyncio.Event()
        asyncio.get_running_loop().call_later(0.15, d.engine.hold.set)
        await d.say([USER])
        assert "no answer within" in d.close().faults[0].cause


async def test_whatever_breaks_inside_is_a_fault_and_tells_nothing(
    desk: OpenDesk, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(*_: Any) -> str:
        raise KeyError("inner")

    async with desk(plan) as d:
        with caplog.at_level(logging.ERROR):
            response = await d.post([USER])
        assert response.status_code == 500
        assert "inner" not in response.text
        assert d.key not in caplog.text
        recording = d.close()
    assert recording.stop == "engine_fault"
    assert recording.faults[0].boundary == "gateway"


async def test_models_health_and_unknown_routes(desk: OpenDesk) -> None:
    async with desk(hello) as d:
        auth = {"authorization": f"Bearer {d.key}"}
        models = await d.client.get("/v1/models", headers=auth)
        assert [m["id"] for m in models.json()["data"]] == ["pocket"]
        assert (await d.client.get("/v1/models/pocket", headers=auth)).json()["id"] == "pocket"
        assert (await d.client.get("/v1/models")).status_code == 401
        assert (await d.client.get("/health")).json()["status"] == "ok"
        response = await d.client.post("/v1/embeddings", headers=auth)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_the_socket_is_private_and_goes_away(desk: OpenDesk, tmp_path: Path) -> None:
    async with desk(hello) as d:
        assert (tmp_path / "g.sock").stat().st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match="Unix socket"):
            async with d.gateway.serve(tmp_path / ("x" * 200)):
                pass
    assert not (tmp_path / "g.sock").exists()


async def test_the_official_client_works_over_loopback(desk: OpenDesk) -> None:
    openai = pytest.importorskip("openai")

    def plan(_: Any, prompt: str) -> str:
        return "done" if "<tool_response>" in prompt else call_text("read", line=1)

    async with desk(plan) as d, d.gateway.serve_loopback() as base_url:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=d.key, max_retries=0)
        messages: list[Any] = [USER]
        first = await client.chat.completions.create(model="m", messages=messages, tools=[READ])
        message = first.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        call_id = message.tool_calls[0].id
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "1 x"})
        text = ""
        stream = await client.chat.completions.create(
            model="m", messages=messages, tools=[READ], stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == "done"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="m", messages=messages, n=3)
        wrong = openai.AsyncOpenAI(base_url=base_url, api_key="no", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        assert [c.extends for c in d.close().calls] == [None, "ep.0"]
