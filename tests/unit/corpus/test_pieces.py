import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.corpus.pieces import split_code
from insitu.render.tokenizer import FastTokenizer
from tests.pocket import make_tokenizer

LINES = st.sampled_from(
    [
        "def f(x):",
        "    return x",
        "",
        "  ",
        "}",
        "class A:",
        "    def g(self):",
        "é𝄞\u2028x",
        "\tif a:",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=400),
    st.lists(LINES, max_size=120).map("\n".join),
    st.text("ab\n ", max_size=400),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    return FastTokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, limit=st.integers(16, 90))
def test_pieces_fit_and_are_the_file_again(tokenizer: FastTokenizer, text: str, limit: int) -> None:
    def count(part: str) -> int:
        return len(tokenizer.encode(part))

    pieces = split_code(text, count, limit)
    assert "".join(pieces) == text
    assert all(pieces)
    assert max(map(count, pieces), default=0) <= limit
    lines = text.splitlines(keepends=True)
    if max(map(count, lines), default=0) <= limit:
        ends, at = set(), 0
        for line in lines:
            ends.add(at := at + len(line))
        at = 0
        for piece in pieces:
            at += len(piece)
            assert at in ends, "cut inside a line"
    decoded = "".join(tokenizer.decode(tokenizer.encode(piece)) for piece in pieces)
    assert decoded == text


def words(text: str) -> int:
    return len(text.split())


def test_functions_stay_whole() -> None:
    function = "@cached\ndef name(a):\n    if a:\n        return 1\n\n    return 2\n\n\n"
    assert split_code(function * 4, words, 18) == [function * 2, function * 2]
    method = "    def name(self):\n        x = 1\n        return x\n\n"
    klass = f"class A:\n{method * 5}"
    pieces = split_code(klass + "\n" + function, words, 32)
    assert "".join(pieces) == klass + "\n" + function
    assert all(p.startswith(("class", "    def", "@cached")) for p in pieces)


def test_braces_end_functions_too() -> None:
    function = "func f() {\n\tone two three four\n}\n"
    assert split_code(function * 4, words, 20) == [function * 2, function * 2]


def test_only_a_line_that_is_too_long_is_cut_inside() -> None:
    pieces = split_code("short line\n" + "x" * 100 + "\nlast\n", len, 30)
    assert pieces[0] == "short line\n"
    assert max(map(len, pieces)) <= 30
    assert split_code("", len, 30) == []
