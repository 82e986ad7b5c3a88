"""Which parts of an agent's changes reach the judge.

The judge's sandbox has the task's own tests and test settings: whatever the agent did to
those is left behind, and so is anything that would run before or instead of them.
"""

import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

from insitu.types import Change, Task

_FOLDERS = frozenset({"test", "tests", ".git", "__pycache__", ".pytest_cache", ".hypothesis"})
_NAMES = frozenset(
    {
        ".coveragerc",
        ".pytest.ini",
        "conftest.py",
        "noxfile.py",
        "pyproject.toml",
        "pytest.ini",
        "pytest.toml",
        "setup.cfg",
        "setup.py",
        "sitecustomize.py",
        "tox.ini",
        "usercustomize.py",
    }
)
_SUFFIXES = (".pth", ".pyc", ".pyo", ".egg-link")
_FOLDER_SUFFIXES = (".dist-info", ".egg-info")
_RUNNERS = frozenset(
    {
        "_pytest",
        "exceptiongroup",
        "iniconfig",
        "packaging",
        "pluggy",
        "py",
        "pygments",
        "pytest",
        "tomli",
    }
)


def test_files(task: Task) -> frozenset[str]:
    """The files that hold the task's named tests."""
    return frozenset(name.split("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass))


def is_protected(path: str, tests: frozenset[str]) -> bool:
    """Whether a change to `path` is left behind.

    Example: `is_protected("tests/conftest.py", frozenset())` is True.
    """
    pure = PurePosixPath(path)
    name = pure.name
    if path in tests or any(t.startswith(f"{path}/") for t in tests):
        return True
    if any(p in _FOLDERS or p.endswith(_FOLDER_SUFFIXES) for p in pure.parts):
        return True
    if name in _NAMES or name.endswith(_SUFFIXES):
        return True
    if name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")):
        return True
    return _shadows(pure)


def _shadows(path: PurePosixPath) -> bool:
    """Whether a module at an import root would stand in front of Python's or pytest's own."""
    parts = (
        path.parts[1:] if path.parts[0] in ("src", "lib") and len(path.parts) > 1 else path.parts
    )
    top = parts[0].split(".")[0]
    is_module = len(parts) > 1 or parts[0].endswith((".py", ".so"))
    return is_module and (top in sys.stdlib_module_names or top in _RUNNERS)


def effective_changes(
    task: Task, changes: Sequence[Change]
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """The changes that reach the judge, sorted by path, and the paths left behind."""
    tests = test_files(task)
    ordered = sorted(changes, key=lambda c: (c.path, c.kind))
    kept = tuple(c for c in ordered if not is_protected(c.path, tests))
    return kept, tuple(c.path for c in ordered if is_protected(c.path, tests))
