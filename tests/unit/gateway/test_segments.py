"""Whatever a product does to its history, each sampled token is trained exactly once."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.gateway.dialects.base import Ask
from insitu.gateway.dialects.chat import ChatDialect
from insitu.gateway.recorder import NOTHING_SAMPLED
from insitu.gateway.segments import stitch
from insitu.gateway.tree import CallTree
from insitu.render.renderer import TokenRenderer
from insitu.types import Call, GatewayError, Segment, TokenResult
from tests.unit.gateway.conftest import call_text

TOOLS = (
    (),
    ({"type": "function", "function": {"name": "read"}},),
    ({"type": "function", "function": {"name": "read"}, "extra": 1},),
)
TURNS = (
    "done",
    "  padded \n",
    "",
    "é𝄞",
    "<think>\nhm\n</think>\n\nyes",
    "<think>open",
    "<tool_call>\n{broken\n</tool_call>",
    "<tool_call>\n{",
    call_text("read", line=1),
    "both " + call_text("read", b=1, a=2) + "\n" + call_text("edit", x="é"),
    '<tool_call>{"arguments":{"z": 1,"a":[1,  2]},"name":"read"}</tool_call>',
)
MOVES = (
    "continue",
    "continue",
    "continue",
    "user",
    "resample",
    "edit",
    "truncate",
    "compact",
    "tools",
    "branch",
    "system",
    "edit_answer",
    "cancel",
)


class Life:
    """A product's life with the tree, driven by a random source."""

    def __init__(self, renderer: TokenRenderer, rng: random.Random) -> None:
        self.renderer, self.rng = renderer, rng
        self.tree, self.dialect = CallTree(), ChatDialect()
        self.calls: list[Call] = []
        self.tools = TOOLS[0]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
        self.histories: list[list[dict[str, Any]]] = []
        self.tokens = 0

    def move(self, move: str) -> None:
        rng, messages = self.rng, self.messages
        if move == "tools":
            self.tools = rng.choice(TOOLS)
        elif move == "system":
            system = {"role": "system", "content": rng.choice("AB")}
            self.messages = [system, *(m for m in messages if m["role"] != "system")]
        elif move == "edit":
            at = rng.randrange(len(messages))
            messages[at] = messages[at] | {"content": messages[at]["content"] + "!"}
        elif move == "edit_answer" and len(messages) > 1:
            messages.insert(1, {"role": "assistant", "content": "never said"})
        elif move == "truncate":
            del messages[rng.randrange(1, len(messages) + 1) :]
        elif move == "compact":
            self.messages = [messages[0], {"role": "user", "content": "summary"}]
        elif move == "branch" and self.histories:
            self.messages = [dict(m) for m in rng.choice(self.histories)]
        elif move == "user":
            messages.append({"role": "user", "content": "go on"})
        if move != "resample":
            self._results()
        self._call(cancelled=move == "cancel")

    def _results(self) -> None:
        last = self.messages[-1]
        for call in last.get("tool_calls", ()):
            result = self.rng.choice(("ok", "failed: é", "<|im_end|>", ""))
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if last["role"] == "assistant" and not last.get("tool_calls"):
            self.messages.append({"role": "user", "content": self.rng.choice(("next", "more"))})

    def _call(self, *, cancelled: bool) -> None:
        ask = Ask(model="m", messages=tuple(dict(m) for m in self.messages), tools=self.tools)
        place = self.tree.place(ask, self.renderer)
        call = Call(
            call_id=f"c{len(self.calls)}",
            episode_id="e",
            index=len(self.calls),
            prompt_ids=place.prompt_ids,
            result=NOTHING_SAMPLED if cancelled else self._sample(),
            request="",
            response="",
            extends=place.extends,
            break_cause=place.break_cause,
        )
        self.calls.append(call)
        if cancelled:
            return
        message = self.dialect.message(self.renderer.parse(call.result.token_ids, call.prompt_ids))
        self.tree.add(call, place, message)
        message.pop("reasoning_content", None)
        self.messages.append(message)
        self.histories.append([dict(m) for m in self.messages])

    def _sample(self) -> TokenResult:
        ids = self.renderer.encode(self.rng.choice(TURNS), marked=True)
        ids += self.rng.choice((self.renderer.stop_ids[:1], self.renderer.stop_ids[:1], ()))
        ids = ids or (self.renderer.stop_ids[1],)
        first, self.tokens = self.tokens, self.tokens + len(ids)
        numbers = range(first, self.tokens)
        logprobs = tuple(-float(n) for n in numbers)
        return TokenResult(token_ids=ids, logprobs=logprobs, versions=tuple(numbers), finish="stop")


def check(calls: Sequence[Call], segments: Sequence[Segment]) -> None:
    """Versions are unique numbers here, so each names one sampled token."""
    trained: list[int] = []
    by_id = {c.call_id: c for c in calls}
    for segment in segments:
        sizes = {len(segment.token_ids), len(segment.trainable), len(segment.logprobs)}
        assert sizes == {len(segment.versions)}
        place = 0
        for call in (by_id[i] for i in segment.call_ids):
            prompt, end = len(call.prompt_ids), len(call.prompt_ids) + len(call.result.token_ids)
            assert segment.token_ids[:end] == call.prompt_ids + call.result.token_ids
            assert not any(segment.trainable[place:prompt])
            assert all(segment.trainable[prompt:end])
            assert segment.logprobs[prompt:end] == call.result.logprobs
            assert segment.versions[prompt:end] == call.result.versions
            place = end
        assert place == len(segment.token_ids)
        for on, logprob, version in zip(
            segment.trainable, segment.logprobs, segment.versions, strict=True
        ):
            assert on or (logprob, version) == (0.0, -1)
        trained += [v for v in segment.versions if v >= 0]
    assert len(trained) == len(set(trained))
    assert sorted(trained) == [v for c in calls for v in c.result.versions]


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32), moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=14))
def test_every_sampled_token_is_trained_once_at_its_place(
    renderer: TokenRenderer, seed: int, moves: list[str]
) -> None:
    life = Life(renderer, random.Random(seed))
    for move in moves:
        life.move(move)
    check(life.calls, stitch(life.calls))
    answered = [c for c in life.calls if c.result.token_ids]
    for call in answered[1:]:
        assert call.extends or call.break_cause, call.call_id


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 8))
def test_an_undisturbed_conversation_is_one_segment(
    renderer: TokenRenderer, seed: int, turns: int
) -> None:
    life = Life(renderer, random.Random(seed))
    for _ in range(turns):
        life.move("continue")
    refused = sum(c.break_cause == "bridge_refused" for c in life.calls)
    assert {c.break_cause for c in life.calls} <= {None, "bridge_refused"}
    assert len(stitch(life.calls)) == 1 + refused


def sampled(name: str, prompt: Sequence[int], ids: Sequence[int], **more: Any) -> Call:
    result = TokenResult(
        token_ids=tuple(ids),
        logprobs=(-1.0,) * len(ids),
        versions=(3,) * len(ids),
        finish="stop",
    )
    return Call(
        call_id=name,
        episode_id="e",
        index=0,
        prompt_ids=tuple(prompt),
        result=result,
        request="",
        response="",
        **more,
    )


def test_the_longest_continuation_goes_on_and_others_begin_anew() -> None:
    a = sampled("a", (1,), (2,))
    short = sampled("short", (1, 2, 3), (4,), extends="a")
    long = sampled("long", (1, 2, 5), (6,), extends="a")
    longer = sampled("longer", (1, 2, 5, 6, 7), (8,), extends="long")
    segments = stitch([a, short, long, longer])
    assert [s.call_ids for s in segments] == [("a", "long", "longer"), ("short",)]
    assert segments[0].token_ids == (1, 2, 5, 6, 7, 8)
    assert segments[0].trainable == (False, True, False, True, False, True)
    assert segments[1].token_ids == (1, 2, 3, 4)
    assert segments[1].trainable == (False, False, False, True)
    assert segments[1].versions == (-1, -1, -1, 3)


def test_a_false_claim_is_a_fault() -> None:
    a = sampled("a", (1,), (2,))
    with pytest.raises(GatewayError, match="b does not begin with the tokens of a"):
        stitch([a, sampled("b", (1, 9, 3), (4,), extends="a")])


def test_calls_without_tokens_are_left_out() -> None:
    a = sampled("a", (1,), (2,))
    cut = replace(sampled("b", (1, 2, 3), ()), extends="a")
    assert [s.call_ids for s in stitch([a, cut])] == [("a",)]
    assert stitch([]) == ()
