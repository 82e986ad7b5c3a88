import inspect
import json
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.tasks.layout import layout_of
from insitu.tasks.mutate import apply_edit, candidate_edits, core, list_functions, reverse
from insitu.tasks.operators import FAMILIES
from insitu.types import Edit, TaskError

SOURCES = {
    "scanner.py": inspect.getsource(json.scanner),
    "textwrap.py": inspect.getsource(textwrap),
}
PLACES = [(path, *place) for path, text in SOURCES.items() for place in list_functions(text)]

EVERY_FAMILY = """
class Box:
    def __init__(self, a, b):
        self.low = a
        self.high = b

    def all_of_it(self, first, second=None, *rest):
        total = 0
        for item in range(len(rest)):
            if item < 3 and first is not None and item in rest:
                total += item * 2
                continue
            if not second:
                break
            rest = rest[1:]
        try:
            value = min(self.low, total)
        except KeyError:
            raise ValueError("é") from None
        compute(first, second)
        return value == rest[0]
"""


def edits_of(text, index=-1):
    _, first, last = list_functions(text)[index]
    return candidate_edits(text, "x.py", first, last)


@given(place=st.sampled_from(PLACES), which=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_every_edit_compiles_and_reverses_exactly(place, which):
    path, _, first, last = place
    text = SOURCES[path]
    edits = candidate_edits(text, path, first, last)
    if not edits:
        return
    edit, family = edits[which % len(edits)]
    changed = apply_edit(text, edit)
    compile(changed, path, "exec")
    assert family in FAMILIES
    assert first <= edit.line <= last
    assert changed != text
    assert apply_edit(changed, reverse(edit)) == text


@given(place=st.sampled_from(PLACES), which=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_reverse_is_a_legal_edit_of_the_changed_source(place, which):
    path, _, first, last = place
    text = SOURCES[path]
    edits = candidate_edits(text, path, first, last)
    if not edits:
        return
    edit, family = edits[which % len(edits)]
    back = candidate_edits(apply_edit(text, edit), path, first, last)
    assert (reverse(edit), family) in back


@given(place=st.sampled_from(PLACES))
@settings(max_examples=8, deadline=None)
def test_old_and_new_are_the_first_in_their_lines(place):
    path, _, first, last = place
    text = SOURCES[path]
    for edit, _ in candidate_edits(text, path, first, last):
        line = text.split("\n")[edit.line - 1]
        changed = apply_edit(text, edit).split("\n")[edit.line - 1]
        assert line.find(edit.old) == edit.column
        assert changed.find(edit.new) == edit.column


def test_no_two_edits_give_the_same_text():
    edits = edits_of(EVERY_FAMILY)
    results = [apply_edit(EVERY_FAMILY, e) for e, _ in edits]
    assert len(set(results)) == len(results)


def test_every_family_occurs():
    assert {family for _, family in edits_of(EVERY_FAMILY)} == set(FAMILIES)


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("return a < b", "<", "<="),
        ("return a is b", "is", "is not"),
        ("return a and b", "and", "or"),
        ("return a[0]", "0", "-1"),
        ("return a[1:]", "1:", ":"),
        ("return list(range(b))", "range(b)", "range(b + 1)"),
        ("return f(a, b)", "a, b", "b, a"),
        ("return max(a, b)", "max", "min"),
        ("return f(a)", "return f", "f"),
        ("raise KeyError(a)", "KeyError", "IndexError"),
        ("a += b", "+=", "-="),
        ("return not a", "not a", "a"),
    ],
)
def test_known_edits(line, old, new):
    text = f"def g(a, b):\n    {line}\n"
    changed = {apply_edit(text, e) for e, _ in edits_of(text)}
    assert f"def g(a, b):\n    {line.replace(old, new)}\n" in changed


@pytest.mark.parametrize(
    "text",
    [
        'def f(a):\n    """Return 1 if a < 2."""\n    return g\n',
        "@cache(size=1)\ndef f(a):\n    return g\n",
        "def f(a: Literal[1] = g) -> Literal[2]:\n    return g\n",
        'def f(a):\n    return f"{a + 1}"\n',
    ],
)
def test_docstrings_decorators_annotations_and_f_strings_are_left_alone(text):
    kept = {"return": "yield", "g": "not g"}
    assert all(e.old.startswith(("return", "g", "f")) for e, _ in edits_of(text)), kept


def test_functions_are_named_and_inner_ones_belong_to_the_outer():
    text = "class A:\n    def f(self):\n        def g():\n            pass\n        return g\n\ndef h():\n    pass\n"
    assert list_functions(text) == [("A.f", 2, 5), ("h", 7, 8)]


def test_columns_count_characters():
    text = 'def f(a, b):\n    return "é", a < b\n'
    assert ('"é"', 14) not in [(e.old, e.column) for e, _ in edits_of(text)]
    edit = next(e for e, family in edits_of(text) if family == "comparison")
    assert text.split("\n")[1][edit.column] == "<"


def test_windows_line_ends_survive():
    text = "def f(a, b):\r\n    return a < b\r\n"
    for edit, _ in edits_of(text):
        assert apply_edit(apply_edit(text, edit), reverse(edit)) == text
        assert apply_edit(text, edit).count("\r\n") == 2


def test_an_edit_that_does_not_fit_is_refused():
    edit = Edit(path="x.py", line=2, old="<", new=">", column=3)
    with pytest.raises(TaskError, match=r"x\.py:2 does not contain '<' at character 3"):
        apply_edit("def f():\n    pass\n", edit)
    with pytest.raises(TaskError, match="no function on lines 5 to 9"):
        candidate_edits("x = 1\n", "x.py", 5, 9)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a < b", "a <= b", ("<", "<=")),
        ("not x", "x", ("not", "")),
        ("0]", "-1]", ("0", "-1")),
        ("return f", "f", ("return", "")),
    ],
)
def test_core_drops_what_both_sides_share(old, new, expected):
    edit = Edit(path="x.py", line=1, old=old, new=new)
    assert core(edit) == expected
    assert core(reverse(edit)) == expected[::-1]


def test_layout_refuses_what_is_not_python():
    with pytest.raises(SyntaxError):
        layout_of("def f(:\n")
