import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from insitu.corpus.tokenizer import chat_scaffolds, load_tokenizer, save_tokenizer, train_tokenizer
from insitu.types import UsageError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": fields, "required": required},
        },
    }
    for name, fields, required in (
        ("run_tests", {}, []),
        ("read", {"path": {"type": "string"}, "line": {"type": "integer"}}, ["path", "line"]),
        (
            "edit",
            {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "old": {"type": "string"},
                "new": {"type": "string"},
            },
            ["path", "line", "old", "new"],
        ),
    )
]
SYSTEM = "You repair Python code."


def made() -> Tokenizer:
    here = Path(__file__).parents[3] / "src" / "insitu"
    texts = [file.read_text() for file in sorted(here.glob("corpus/*.py"))]
    texts += [f"{n} if x < y: x not in y" for n in range(100, 1000)] * 20
    return train_tokenizer(texts, vocabulary=1000, scaffolds=chat_scaffolds(SYSTEM, TOOLS))


TOKENIZER = made()


def pieces(text: str) -> list[str]:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return [TOKENIZER.decode([i], skip_special_tokens=False) for i in ids]


CODE = st.lists(
    st.sampled_from(
        [
            *(
                "def f(x):",
                "\n",
                "    ",
                "return ",
                "x",
                " <= ",
                "12345",
                "'",
                '"}}\n',
                '", "line": ',
            ),
            *("<tool_call>", "é", "\t", " ", "not in", "self.", "_a", "<|im_end|>", "assistant\n"),
        ]
    )
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), CODE))
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_numbers_are_split_from_the_right() -> None:
    assert pieces("7") == ["7"]
    assert pieces("190") == ["1", "90"]
    assert pieces("12345") == ["1", "23", "45"]


def test_names_have_no_space_of_their_own() -> None:
    assert pieces("if x < y:") == ["if ", "x", " < ", "y", ":"]
    assert pieces("x not in y") == ["x", " not in ", "y"]


def test_a_tool_call_is_scaffolds_and_arguments() -> None:
    call = {"path": "a", "line": 7, "old": "x", "new": "y"}
    text = f'\n{{"name": "edit", "arguments": {json.dumps(call)}}}\n'
    assert len(pieces(text)) == 9
    assert pieces('\n{"name": "run_tests", "arguments": {}}\n') == [
        '\n{"name": "run_tests", "arguments": {}}\n'
    ]


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    save_tokenizer(TOKENIZER, tmp_path, context=128)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("def f(x): return 12").ids == TOKENIZER.encode("def f(x): return 12").ids
    assert loaded.get_vocab_size() == 1000
    assert "<tool_response>" in (tmp_path / "chat_template.jinja").read_text()


def test_too_little_text_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="Give more text"):
        train_tokenizer(["x = 1"], vocabulary=4096, scaffolds=[])


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
