"""A transcript becomes the very tokens that the gateway would record of the session."""

import json
from pathlib import Path
from typing import Any

import pytest

from insitu.corpus.conversations import Talk, read_conversations
from insitu.corpus.rendered import conversation_documents
from insitu.corpus.tokenset import TokenDocument
from insitu.gateway.dialects.chat import ChatDialect
from insitu.gateway.segments import stitch
from insitu.gateway.tree import CallTree
from insitu.render.renderer import TokenRenderer
from insitu.types import Call, Segment, TokenResult, UsageError
from tests.pocket import make_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Shows a function.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


def says(content: str = "", *calls: str, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": "read", "arguments": a}}
            for i, a in enumerate(calls)
        ]
    return message


SYSTEM = {"role": "system", "content": "You repair code."}
ASK = {"role": "user", "content": "`f` in a.py:3 is broken."}
RESULT = {"role": "tool", "tool_call_id": "c0", "content": "3 def f(x):\n4     return <|im_end|>"}
TALKS: dict[str, list[dict[str, Any]]] = {
    "plain": [SYSTEM, ASK, says("Done.")],
    "tools": [SYSTEM, ASK, says("", '{"path": "a.py"}'), RESULT, says("It is mended.")],
    "text and calls": [
        *(SYSTEM, ASK, says("Let me look.", '{"path": "é"}', '{"path":"b","line":[1, 2]}')),
        *(RESULT, {**RESULT, "tool_call_id": "c1"}, says("", "{}"), RESULT, says("ok")),
    ],
    "no system": [ASK, says("a"), ASK, says("b")],
    "two users": [SYSTEM, ASK, ASK, says("a"), ASK, says("b", "{}"), RESULT],
    "thinking": [SYSTEM, ASK, says("a", reasoning_content="hm"), ASK, says("b", "{}")],
    "thinking as text": [ASK, says("<think>\nhm\n</think>\n\na"), ASK, says("b")],
    "empty answer": [ASK, says(""), ASK, says("b")],
    "padded answer": [ASK, says("  a \n", "{}"), RESULT, says("\n\nb")],
}


def with_chat_template(folder: Path, template: str) -> Path:
    """A tokenizer of no family that has a renderer of its own."""
    make_tokenizer(folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("<tool_response>", "<other>"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> TokenRenderer:
    return TokenRenderer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def live(renderer: TokenRenderer, talk: list[dict[str, Any]], tools: list[Any]) -> list[Segment]:
    """What the gateway records of a product's session in which the policy answers as told.

    As products do, this one sends back what it heard.
    """
    tree, calls, dialect = CallTree(), [], ChatDialect()
    history = list(talk)
    for i in (i for i, m in enumerate(talk) if m["role"] == "assistant"):
        body = {"model": "m", "messages": history[:i], "tools": tools}
        ask = dialect.read(json.dumps(body).encode())
        place = tree.place(ask, renderer)
        sampled = renderer.answer(dialect.read(_body(talk[: i + 1])).messages, tools)
        turn = renderer.parse(sampled, place.prompt_ids)
        heard = dialect.message(turn)
        _same_meaning(heard, talk[i])
        history[i] = heard
        call = Call(
            call_id=f"c{i}",
            episode_id="e",
            index=i,
            prompt_ids=place.prompt_ids,
            result=TokenResult(
                token_ids=sampled,
                logprobs=(0.0,) * len(sampled),
                versions=(0,) * len(sampled),
                finish="stop",
            ),
            request="",
            response="",
            extends=place.extends,
            break_cause=place.break_cause,
        )
        tree.add(call, place, heard)
        calls.append(call)
    return list(stitch(calls))


def _body(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def _same_meaning(heard: dict[str, Any], said: dict[str, Any]) -> None:
    """The product hears what the transcript says: the tokens mean the message."""
    text = said["content"].rpartition("</think>")[2]
    assert heard["content"].strip() == text.strip()
    calls = [
        [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m]
        for m in (heard.get("tool_calls", []), said.get("tool_calls", []))
    ]
    assert calls[0] == calls[1]


def documents(renderer: TokenRenderer, talk: list[dict[str, Any]], tools: list[Any]):
    return conversation_documents(
        renderer, Talk(where="t:1", messages=tuple(talk), tools=tuple(tools))
    )


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("name", TALKS)
def test_the_tokens_and_the_targets_are_the_gateways(renderer, name, tools) -> None:
    segments = live(renderer, TALKS[name], tools)
    found = documents(renderer, TALKS[name], tools)
    assert [d.ids for d in found] == [s.token_ids for s in segments]
    assert [d.loss for d in found] == [s.trainable for s in segments]


def taught(renderer: TokenRenderer, found: list[TokenDocument]) -> list[str]:
    """The text of each run of targets."""
    runs: list[list[int]] = []
    for document in found:
        for i, (token, loss) in enumerate(zip(document.ids, document.loss, strict=True)):
            if loss and not (i and document.loss[i - 1]):
                runs.append([])
            if loss:
                runs[-1].append(token)
    return [renderer.decode(run) for run in runs]


def test_the_loss_is_on_what_the_assistant_says(renderer) -> None:
    talk = [SYSTEM, ASK, says("Look.", '{"path": "a"}'), RESULT, says("", reasoning_content="hm")]
    assert taught(renderer, documents(renderer, talk, TOOLS)) == [
        'Look.\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>',
        "<think>\nhm\n</think>\n\n<|im_end|>",
    ]


def test_an_unscored_turn_is_shown_and_not_taught(renderer, tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    talk = [SYSTEM, ASK, says("wrong"), ASK, says("right")]
    path.write_text(json.dumps({"messages": talk, "unscored": [2]}))
    found = conversation_documents(renderer, *read_conversations(path))
    assert taught(renderer, found) == ["right<|im_end|>"]
    assert found[0].ids == documents(renderer, talk, [])[0].ids


def test_another_familys_own_template_is_used(tmp_path) -> None:
    renderer = TokenRenderer(with_chat_template(tmp_path, CHATML))
    talk = [SYSTEM, ASK, says("a"), ASK, says("b")]
    (document,) = found = documents(renderer, talk, [])
    assert renderer.decode(document.ids) == (
        "<|im_start|>system\nYou repair code.<|im_end|>\n<|im_start|>user\n`f` in a.py:3 is broken."
        "<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\n`f` in a.py:3 is broken."
        "<|im_end|>\n<|im_start|>assistant\nb<|im_end|>"
    )
    assert taught(renderer, found) == ["a<|im_end|>", "b<|im_end|>"]
    segments = live(renderer, talk, [])
    assert [(d.ids, d.loss) for d in found] == [(s.token_ids, s.trainable) for s in segments]


def test_where_a_template_rewrites_the_history_each_answer_stands_in_its_own(tmp_path) -> None:
    renderer = TokenRenderer(with_chat_template(tmp_path, FORGETFUL))
    talk = [ASK, says("a"), ASK, says("b")]
    found = documents(renderer, talk, [])
    assert taught(renderer, found) == ["a<|im_end|>", "b<|im_end|>"]
    segments = live(renderer, talk, [])
    assert [(d.ids, d.loss) for d in found] == [(s.token_ids, s.trainable) for s in segments]


def test_what_a_template_refuses_is_named_by_its_line(tmp_path) -> None:
    template = "{{ raise_exception('users and assistants alternate') }}"
    renderer = TokenRenderer(with_chat_template(tmp_path, template))
    with pytest.raises(UsageError, match=r"t:1: .*refuses it: users and assistants alternate"):
        documents(renderer, TALKS["plain"], [])


def test_the_demos_model_too() -> None:
    folder = Path(__file__).parents[3] / "models" / "pocket"
    renderer = TokenRenderer(folder)
    segments = live(renderer, TALKS["tools"], TOOLS)
    found = documents(renderer, TALKS["tools"], TOOLS)
    assert [(d.ids, d.loss) for d in found] == [(s.token_ids, s.trainable) for s in segments]
