"""What every dialect promises the gateway."""

from typing import get_args

import pytest

from insitu.gateway.dialects.base import Ask, Cause, Dialect, Reply, RequestError
from insitu.gateway.dialects.table import DIALECTS, dialect_at
from insitu.render.turns import ParsedTurn, ToolCall

CALL = ToolCall(id="call_1", name="read", arguments='{"path": "é.py"}')
TURNS = (
    ParsedTurn(content="hello"),
    ParsedTurn(content=""),
    ParsedTurn(content="", tool_calls=(CALL,)),
    ParsedTurn(content="both\n", reasoning="hm", tool_calls=(CALL, CALL)),
    ParsedTurn(content="<tool_call>{", malformed=("unclosed_block",)),
)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return dialect_at(request.param)


def answer(turn: ParsedTurn) -> Reply:
    return Reply(
        call_id="ep.0",
        model="m",
        turn=turn,
        finish="stop",
        prompt_tokens=3,
        sampled_tokens=2,
        cached_tokens=1,
        version=4,
        created=5,
    )


@pytest.mark.parametrize("turn", TURNS)
def test_an_answer_comes_back_as_the_message_a_faithful_product_sends(
    dialect: Dialect, turn: ParsedTurn
) -> None:
    assert dialect.answered(dialect.answer(answer(turn)).decode()) == dialect.message(turn)


@pytest.mark.parametrize("turn", TURNS)
def test_a_stream_is_server_sent_events_with_all_the_text(
    dialect: Dialect, turn: ParsedTurn
) -> None:
    ask = Ask(model="m", messages=(), stream=True, stream_usage=True)
    body = b"".join(dialect.stream(answer(turn), ask)).decode()
    assert body.endswith("\n\n")
    assert all(e.startswith(("data: ", "event: ")) for e in body.split("\n\n") if e)
    for call in turn.tool_calls:
        assert call.id in body
        assert call.name in body


@pytest.mark.parametrize("cause", get_args(Cause))
def test_every_cause_has_a_status_and_keeps_the_words(dialect: Dialect, cause: Cause) -> None:
    status, body = dialect.error(RequestError(cause, "exact words"))
    assert 400 <= status < 600
    assert b"exact words" in body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_request_is_a_bad_request(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        dialect.read(body)
    assert caught.value.cause == "bad_request"


def test_no_header_is_no_key(dialect: Dialect) -> None:
    assert dialect.key({}) == ""


def test_the_route_of_no_dialect_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        dialect_at("/v1/nothing")
