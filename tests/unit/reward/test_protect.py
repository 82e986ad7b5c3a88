"""What of an agent's changes reaches the judge."""

import pytest

from insitu.reward.protect import effective_changes, is_protected
from insitu.types import Change, ChangeKind, Task

TASK = Task(
    task_id="t", folder="/t", instruction="", layers=(), workdir="/home/dev/r", env_path="",
    agent_timeout_s=1, verifier_timeout_s=1,
    fail_to_pass=("checks/core_checks.py::test_a",), pass_to_pass=("checks/core_checks.py::test_b",),
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py", "pkg/tests/data.json", "test/x.txt", "conftest.py", "pkg/conftest.py",
        "pytest.ini", "setup.cfg", "tox.ini", "pyproject.toml", "sitecustomize.py", "evil.pth",
        "pkg/__pycache__/core.cpython-311.pyc", ".git/config", "test_new.py", "pkg/core_test.py",
        "checks/core_checks.py", "checks", "pytest.py", "_pytest/runner.py", "json.py",
        "src/unittest/__init__.py", "pluggy/__init__.py", "pkg.egg-info/PKG-INFO",
    ],
)  # fmt: skip
def test_protected(path):
    assert is_protected(path, frozenset({"checks/core_checks.py"}))


@pytest.mark.parametrize(
    "path",
    ["pkg/core.py", "src/pkg/core.py", "pkg/testing.py", "pkg/json.py", "pkg/latest.py", "README.md", "checks/other.py", "contest.py"],
)  # fmt: skip
def test_not_protected(path):
    assert not is_protected(path, frozenset({"checks/core_checks.py"}))


def test_effective_changes_are_sorted_and_the_rest_is_named():
    changes = [Change(path=p, kind=ChangeKind.MODIFIED) for p in ("z.py", "tests/t.py", "a.py")]
    kept, left = effective_changes(TASK, changes)
    assert [c.path for c in kept] == ["a.py", "z.py"]
    assert left == ("tests/t.py",)
