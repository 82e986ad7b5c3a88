"""The reward expression: what it computes, and what it refuses."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.reward import formula
from insitu.types import ConfigError, Signal

SIGNALS = (
    Signal(name="passed", value=1.0),
    Signal(name="effort", value=2.0),
    Signal(name="repeated_edits", value=3.0),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("passed", 1.0),
        ("passed - 0.02 * effort", 0.96),
        ("-effort ** 2", -4.0),
        ("min(1, effort) + max(0, passed - 2, -1)", 1.0),
        ("passed == 1", 1.0),
        ("0 < passed <= 1 < effort", 1.0),
        ("(effort > 3) * 5", 0.0),
        ("  passed / effort ", 0.5),
    ],
)
def test_values(text, value):
    reward = formula.evaluate(text, SIGNALS)
    assert reward.value == pytest.approx(value)
    assert reward.formula == text


def test_an_unknown_signal_is_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError) as caught:
        formula.evaluate("pased - effort", SIGNALS)
    assert "'pased'" in str(caught.value)
    assert "'passed'" in str(caught.value)
    assert "repeated_edits" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "passed +", "passed; effort", "__import__('os')", "passed.real", "[passed]", "'x'",
        "lambda: 1", "passed if effort else 0", "passed in effort", "min(passed, key=effort)",
        "min()", "abs(passed)", "passed / 0", "10 ** 400", "2 ** 99", "(0 - 8) ** 0.5", "1e308 * 10",
        "f'{passed}'", "passed and effort", "not passed", "x" * 2000, "(" * 500,
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises(ConfigError, match=r"reward"):
        formula.evaluate(text, SIGNALS)


def test_names():
    assert formula.names("min(passed, 2 * effort)") == {"passed", "effort"}


@given(st.text(max_size=40))
def test_any_text_gives_a_number_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(formula.evaluate(text, SIGNALS).value, float)
