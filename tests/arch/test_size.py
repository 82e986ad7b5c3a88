"""Functions and modules stay short enough to read."""

import statistics

import pytest

from tests.arch.house import code_lines, modules

MEDIAN, P95, LONGEST, MODULE = 10, 45, 80, 500


@pytest.fixture(scope="module")
def functions():
    return [(code_lines(m, f), m.where(f.lineno), f.name) for m in modules() for f in m.functions()]


def test_no_function_is_too_long(functions):
    wrong = [f"{where} {name}: {n} lines" for n, where, name in functions if n > LONGEST]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short(functions):
    lengths = [n for n, _, _ in functions]
    assert statistics.median(lengths) <= MEDIAN
    p95 = statistics.quantiles(lengths, n=20)[-1]
    longest = sorted(functions, reverse=True)[: len(functions) // 20]
    assert p95 <= P95, "\n".join(f"{where} {name}: {n}" for n, where, name in longest)


def test_no_module_is_too_long():
    wrong = [f"{m.where(1)}: {n} lines" for m in modules() if (n := m.text.count("\n")) > MODULE]
    assert not wrong, "\n".join(wrong)
