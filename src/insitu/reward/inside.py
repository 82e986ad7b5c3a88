"""Runs a task's named tests inside the judge's sandbox. Started as a script; imports no insitu.

Reads one JSON request from standard input and then closes it:

    {"nonce": "…", "tests": ["tests/test_a.py::test_x"], "paths": ["/home/dev/repo"]}

It writes two lines to its standard output, which the code under test never sees as such: the
descriptor is moved away before anything of the workspace is imported, and what tests print
goes to standard error. Each line begins with the nonce; the first comes before the tests:

    <nonce> {"ready": "8.3.4"}
    <nonce> {"outcomes": "PFM", "exit": 1, "harness": true, "errors": {"name": "ValueError: x"}}

One letter per requested test: P passed, F failed, S skipped, M missing. A process that ends
early writes no line; a printed "3 passed" is not a line with the nonce; functions of pytest
and unittest that were swapped while the tests ran make `harness` false.
"""

import fcntl
import json
import os
import sys
import types
import unittest.case
from collections.abc import Callable
from typing import Any

_FLAGS = ["-q", "-p", "no:cacheprovider", "--tb=native", "--no-header", "--no-summary"]
_GUARDED = (
    "_pytest.main",
    "_pytest.outcomes",
    "_pytest.python",
    "_pytest.reports",
    "_pytest.runner",
    "_pytest.unittest",
    "unittest.case",
)
_MESSAGE = 160


def main() -> None:
    """Take the request, hide the channel, run the tests, answer."""
    request = json.loads(sys.stdin.buffer.read())
    channel = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 200)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    import pytest

    _say(channel, request["nonce"], {"ready": pytest.__version__})
    report, code = _run(pytest.main, request["tests"], request["paths"])
    _say(channel, request["nonce"], report)
    os._exit(code)


def _say(channel: int, nonce: str, report: dict[str, Any]) -> None:
    data = (nonce + " " + json.dumps(report) + "\n").encode()
    while data:
        data = data[os.write(channel, data) :]


def _run(
    run_pytest: Callable[..., int], tests: list[str], paths: list[str]
) -> tuple[dict[str, Any], int]:
    seen: dict[str, str] = {}
    errors: dict[str, str] = {}

    class Recorder:
        """Notes each phase of each test."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            """One phase of one test."""
            entry = seen.setdefault(report.nodeid, "")
            if report.failed:
                seen[report.nodeid] = "F"
                errors[report.nodeid] = _last_line(report)
            elif report.skipped and entry != "F":
                seen[report.nodeid] = "S"
            elif report.when == "call" and entry == "":
                seen[report.nodeid] = "P"

        def pytest_collectreport(self, report: Any) -> None:
            """A file that cannot be imported."""
            if report.failed:
                errors[report.nodeid] = _last_line(report)

    before = _guarded()
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    code = int(run_pytest([*_FLAGS, *tests], plugins=[Recorder()]))
    outcomes = "".join(_outcome(name, seen) for name in tests)
    shown = dict(list(errors.items())[:3])
    return {
        "outcomes": outcomes,
        "exit": code,
        "harness": _guarded(before) == before,
        "errors": shown,
    }, code


def _outcome(name: str, seen: dict[str, str]) -> str:
    """The outcome of a requested name: its own, or of all that it stands for."""
    if name in seen:
        return seen[name] or "M"
    below = {seen[s] or "M" for s in seen if s.startswith((name + "::", name + "["))}
    for letter in "FMS":
        if letter in below:
            return letter
    return "P" if below else "M"


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).partition("\n")[0][:_MESSAGE]
    lines = [s for s in str(report.longrepr).splitlines() if s.strip()]
    return lines[-1].strip()[:_MESSAGE] if lines else "error"


def _guarded(only: dict[str, Any] | None = None) -> dict[str, Any]:
    """Identity of each function of the test harness; with `only`, of those names."""
    found: dict[str, Any] = {}
    for name in _GUARDED:
        module = sys.modules.get(name)
        for owner in [module, *_classes(module)]:
            for attribute, value in list(vars(owner).items()) if owner else []:
                key = f"{name}:{getattr(owner, '__qualname__', '')}.{attribute}"
                if isinstance(value, types.FunctionType) and (only is None or key in only):
                    found[key] = (id(value), id(value.__code__))
    return found


def _classes(module: types.ModuleType | None) -> list[type]:
    if module is None:
        return []
    own = module.__name__
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == own]


if __name__ == "__main__":
    assert unittest.case  # imported before the workspace can be
    main()
