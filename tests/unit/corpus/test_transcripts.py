import json
from pathlib import Path

import pytest

from insitu.corpus.tokenizer import save_tokenizer
from insitu.corpus.transcripts import TranscriptEncoder, quoting, segment_document
from insitu.render.renderer import TokenRenderer
from insitu.types import Segment, UsageError
from tests.unit.corpus.test_tokenizer import SYSTEM, TOKENIZER, TOOLS


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def says(tool: str, **arguments: object) -> dict[str, object]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}


def hears(content: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": "c", "content": content}


TALK = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "`f` in a.py:3 is broken."},
    says("read", path="a.py", line=3),
    hears("3 def f(x):\n4     return x < 1"),
    says("edit", path="a.py", line=4, old="<", new="<="),
    hears("4     return x <= 1"),
    says("run_tests"),
]


def test_the_loss_is_on_the_assistants_tokens_only() -> None:
    document = TranscriptEncoder(encode, TOOLS).document(TALK)
    taught = [i for i, loss in zip(document.ids, document.loss, strict=True) if loss]
    text = TOKENIZER.decode(taught, skip_special_tokens=False)
    assert text == (
        '<tool_call>\n{"name": "read", "arguments": {"path": "a.py", "line": 3}}\n</tool_call>'
        '<|im_end|><tool_call>\n{"name": "edit", "arguments": {"path": "a.py", "line": 4, "old": '
        '"<", "new": "<="}}\n</tool_call><|im_end|>'
        '<tool_call>\n{"name": "run_tests", "arguments": {}}\n</tool_call><|im_end|>'
    )


def test_a_wrong_try_is_shown_without_loss() -> None:
    document = TranscriptEncoder(encode, TOOLS).document(TALK, unscored={4})
    taught = [i for i, loss in zip(document.ids, document.loss, strict=True) if loss]
    assert '"edit"' not in TOKENIZER.decode(taught, skip_special_tokens=False)


def test_lines_of_results_can_carry_loss_without_changing_the_tokens() -> None:
    encoder = TranscriptEncoder(encode, TOOLS)
    plain = encoder.document(TALK)
    scored = encoder.document(TALK, also_scored=lambda i, line: line.startswith("4 "))
    assert scored.ids == plain.ids
    extra = [t for t, a, b in zip(plain.ids, plain.loss, scored.loss, strict=True) if a != b]
    text = TOKENIZER.decode(extra, skip_special_tokens=False)
    assert text == "4     return x < 1\n4     return x <= 1\n"


def test_the_tokens_are_those_the_renderer_makes_in_a_live_session(tmp_path: Path) -> None:
    save_tokenizer(TOKENIZER, tmp_path, context=512)
    renderer = TokenRenderer(tmp_path)
    document = TranscriptEncoder(encode, TOOLS).document(TALK)
    prompt: tuple[int, ...] | None = renderer.first(TALK[:2], TOOLS)
    for i in range(2, len(TALK), 2):
        assert prompt is not None
        assert document.ids[: len(prompt)] == prompt
        end = document.ids.index(renderer.stop_ids[0], len(prompt)) + 1
        sampled = document.ids[len(prompt) : end]
        if i + 1 < len(TALK):
            prompt = renderer.bridge(prompt, sampled, TALK[i + 1 : i + 2], TOOLS)


def test_an_edit_quotes_the_line_as_it_was_last_shown() -> None:
    again = says("edit", path="a.py", line=4, old="<=", new=">")
    unseen = says("edit", path="a.py", line=9, old="x", new="y")
    quoted = quoting([*TALK[:6], again, hears("4     return x > 1"), unseen])
    assert [m["content"] for m in quoted if m["role"] == "assistant"] == [
        *("", "4     return x < 1", "4     return x <= 1", "")
    ]
    assert quoting(TALK, longest=5)[4]["content"] == ""
    assert TALK[4]["content"] == ""
    text = TOKENIZER.decode(
        TranscriptEncoder(encode, TOOLS).document(quoted).ids, skip_special_tokens=False
    )
    assert "assistant\n4     return x < 1\n<tool_call>" in text


def test_a_scan_goes_through_the_lines_up_to_the_one_to_edit() -> None:
    again = says("edit", path="a.py", line=3, old="f", new="g")
    scanned = quoting([*TALK[:6], again], scan=True)
    assert scanned[4]["content"] == "3 def f(x):\n4     return x < 1"
    assert scanned[6]["content"] == "3 def f(x):"


def test_a_line_that_the_last_report_names_is_quoted_alone() -> None:
    report = hears("failed: tests/test_a.py::test_f\na.py:4 return x < 1\nTypeError: no")
    talk = [*TALK[:2], says("run_tests"), report, *TALK[2:6]]
    assert talk[6]["tool_calls"][0]["function"]["name"] == "edit"
    assert quoting(talk, scan=True)[6]["content"] == "4     return x < 1"
    elsewhere = hears("failed: tests/test_a.py::test_f\nb.py:4 return x < 1\nTypeError: no")
    talk[3] = elsewhere
    assert quoting(talk, scan=True)[6]["content"] == "3 def f(x):\n4     return x < 1"


def test_a_tokenizer_without_the_markers_is_refused() -> None:
    with pytest.raises(UsageError, match="not one token"):
        TranscriptEncoder(lambda text: list(text.encode()), TOOLS)


def test_a_segment_keeps_its_tokens() -> None:
    segment = Segment(
        token_ids=(1, 2, 3),
        trainable=(False, True, True),
        logprobs=(0, -1, -1),
        versions=(-1, 0, 0),
    )
    document = segment_document(segment)
    assert document.ids == (1, 2, 3)
    assert document.loss == (False, True, True)
