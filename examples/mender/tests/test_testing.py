import time
from pathlib import Path

import pytest
from mender import testing


@pytest.fixture(autouse=True)
def _own_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child forks from this very pytest; the real start is covered by test_session."""
    testing._cache_folder.cache_clear()
    monkeypatch.setattr(testing, "_warm_up", lambda: None)


def rewrite(repo: Path, old: str, new: str) -> None:
    file = repo / "calc/core.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_sees_the_files_as_they_are_now(repo: Path) -> None:
    test = "tests/test_core.py::TotalTests::test_empty"
    assert testing.run(repo, test) == "passed"
    rewrite(repo, "result = 0", "result = 1")
    assert testing.run(repo, test) == (
        f"failed: {test}\n"
        "tests/test_core.py:16 self.assertEqual(total([]), 0)\n"
        "AssertionError: 1 != 0"
    )
    rewrite(repo, "result = 1", "result = 0")
    assert testing.run(repo, test) == "passed"


def test_nothing_is_compiled_twice(repo: Path) -> None:
    test = "tests/test_core.py::TotalTests::test_empty"
    cache = testing._cache_folder()
    assert testing.run(repo, test) == "passed"
    kept = sorted(cache.iterdir())
    assert testing.run(repo, test) == "passed"
    assert sorted(cache.iterdir()) == kept
    rewrite(repo, "result = 0", "result = 1")
    testing.run(repo, test)
    assert len(list(cache.iterdir())) == len(kept) + 1
    for file in cache.iterdir():
        file.write_bytes(b"damaged")
    rewrite(repo, "result = 1", "result = 0")
    assert testing.run(repo, test) == "passed"


def test_shows_the_frames_of_the_repository(repo: Path) -> None:
    rewrite(repo, "result += value", "result += value[0]")
    assert testing.run(repo, "tests/test_core.py::test_total") == (
        "failed: tests/test_core.py::test_total\n"
        "tests/test_core.py:11 assert total([1, 2]) == 3\n"
        "calc/core.py:19 result += value[0]\n"
        "TypeError: 'int' object is not subscriptable"
    )


def test_syntax_errors_and_import_errors_are_shown(repo: Path) -> None:
    rewrite(repo, "return result", "return (result")
    assert testing.run(repo, "tests/test_core.py::test_total") == (
        "failed: tests/test_core.py::test_total\n"
        "tests/test_core.py:3 from calc.core import clamp, total\n"
        "calc/core.py:20 return (result\n"
        "SyntaxError: '(' was never closed"
    )
    rewrite(repo, "return (result", "return result")
    rewrite(repo, "def total", "def totals")
    report = testing.run(repo, "tests/test_core.py::test_total")
    assert report.startswith(
        "failed: tests/test_core.py::test_total\n"
        "tests/test_core.py:3 from calc.core import clamp, total\n"
        "ImportError: cannot import name 'total' from 'calc.core' (calc/core.py)"
    )


def test_hanging_and_dying_tests_are_outcomes(repo: Path) -> None:
    test = "tests/test_core.py::test_total"
    rewrite(repo, "result = 0\n", "result = 0\n    while True: pass\n")
    began = time.monotonic()
    assert testing.run(repo, test, timeout_s=1.0) == f"failed: {test} timed out"
    assert time.monotonic() - began < 5
    rewrite(repo, "while True: pass", "__import__('os')._exit(0)")
    assert testing.run(repo, test) == f"failed: {test} crashed"
    rewrite(repo, "__import__('os')._exit(0)", "result = 'x' * 10**11")
    assert testing.run(repo, test).split("\n")[-1] == "MemoryError"


def test_tests_that_do_not_run(repo: Path) -> None:
    assert testing.run(repo, "tests/test_core.py::wat") == (
        "failed: tests/test_core.py::wat not found"
    )
    assert testing.run(repo, "tests/wat.py::wat") == "failed: tests/wat.py::wat not found"
    (repo / "tests/test_skip.py").write_text(
        "import pytest\n\n\n@pytest.mark.skip\ndef test_no(): pass\n"
    )
    assert testing.run(repo, "tests/test_skip.py::test_no") == (
        "failed: tests/test_skip.py::test_no did not run"
    )


def test_a_conftest_that_breaks_is_shown(repo: Path) -> None:
    (repo / "tests/conftest.py").write_text("import calc.core\n")
    rewrite(repo, "def clamp(", "def clamp(a=later, *")
    assert testing.run(repo, "tests/test_core.py::test_total") == (
        "failed: tests/test_core.py::test_total\n"
        "tests/conftest.py:1 import calc.core\n"
        "calc/core.py:4 def clamp(a=later, *value, low, high):\n"
        "NameError: name 'later' is not defined"
    )


def test_other_tests_of_the_file_that_are_used_stay(repo: Path) -> None:
    (repo / "tests/test_shared.py").write_text(
        "def test_base(n=3):\n    assert n == 3\n\n\n"
        "def test_other():\n    assert False\n\n\n"
        "def test_user():\n    test_base(4)\n"
    )
    assert testing.run(repo, "tests/test_shared.py::test_user") == (
        "failed: tests/test_shared.py::test_user\n"
        "tests/test_shared.py:10 test_base(4)\n"
        "tests/test_shared.py:2 assert n == 3\n"
        "AssertionError: assert 4 == 3"
    )


def test_parametrised_subtests_and_long_messages(repo: Path) -> None:
    (repo / "tests/test_more.py").write_text(
        "import unittest, pytest\n\n\n"
        "@pytest.mark.parametrize('x', ['a b', object])\n"
        "def test_p(x):\n    assert [x] * 300 == repr(object())\n\n\n"
        "class T(unittest.TestCase):\n"
        "    def test_sub(self):\n"
        "        for i in range(3):\n"
        "            with self.subTest(i=i):\n"
        "                self.assertEqual(i, 1)\n"
    )
    lines = testing.run(repo, "tests/test_more.py::test_p[a b]").split("\n")
    assert lines[:2] == [
        "failed: tests/test_more.py::test_p[a b]",
        "tests/test_more.py:6 assert [x] * 300 == repr(object())",
    ]
    assert len("\n".join(lines[2:])) <= 200
    assert len(lines) <= 5
    assert testing.run(repo, "tests/test_more.py::T::test_sub") == (
        "failed: tests/test_more.py::T::test_sub\n"
        "tests/test_more.py:13 self.assertEqual(i, 1)\n"
        "AssertionError: 0 != 1"
    )
