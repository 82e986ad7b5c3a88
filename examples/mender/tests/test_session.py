"""Whole sessions: the program as it is started, against a scripted model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HOME, ISSUE, Api, say

PACKAGES = Path(pytest.__file__).parent.parent


def start(repo: Path, api: Api, *options: str, issue: str = ISSUE) -> subprocess.CompletedProcess:
    file = repo.parent / "ISSUE.md"
    file.write_text(issue)
    return subprocess.run(
        [sys.executable, "-P", "-S", "-m", "mender", "--issue-file", str(file), *options],
        cwd=repo,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{HOME}:{PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENAI_BASE_URL": api.url,
            "OPENAI_API_KEY": "secret",
            "MENDER_MODEL": "pocket",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_repairs_the_repository(repo: Path, api: Api) -> None:
    api.replies = [
        say(("run_tests", {})),
        say(("read", {"path": "calc/core.py", "line": 4})),
        say(("edit", {"path": "calc/core.py", "line": 10, "old": "> low", "new": "< low"})),
        say(("run_tests", {})),
        say(("finish", {"summary": "fixed"})),
    ]
    before = {p.relative_to(repo) for p in repo.rglob("*")}
    done = start(repo, api)
    assert done.returncode == 0, done.stderr
    assert api.results() == [
        "failed: tests/test_core.py::test_clamp\n"
        "tests/test_core.py:7 assert clamp(2, 0, 3) == 2\n"
        "AssertionError: assert 0 == 2\n"
        " +  where 0 = clamp(2, 0, 3)",
        "4 def clamp(value, low, high):\n"
        '5     """Bring a value into a range....\n'
        "10     if value > low:\n"
        "11         return low\n"
        "12     return min(value, high)",
        "10     if value < low:",
        "passed",
    ]
    assert "    if value < low:\n" in (repo / "calc/core.py").read_text()
    assert {p.relative_to(repo) for p in repo.rglob("*")} == before  # nothing left behind


def test_conversation_only_grows(repo: Path, api: Api) -> None:
    api.replies = [say(("search", {"text": "def"})), say(text="Well."), say(("finish", {}))]
    assert start(repo, api).returncode == 0
    first, second, third = (r["messages"] for r in api.requests)
    assert first == [
        {
            "role": "system",
            "content": "You repair Python code. Use the tools; one call at a time.",
        },
        {"role": "user", "content": ISSUE.strip()},
    ]
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert third[-1] == {"role": "user", "content": "Use a tool."}
    assert len({str(r["tools"]) for r in api.requests}) == 1
    assert api.requests[0]["model"] == "pocket"
    assert api.headers[0]["Authorization"] == "Bearer secret"


def test_several_calls_run_in_order_and_finish_ends(repo: Path, api: Api) -> None:
    wrong = {"path": "calc/core.py", "line": 12, "old": "min", "new": "max"}
    api.replies = [
        say(("edit", wrong), ("undo", {}), ("undo", {})),
        say(("finish", {}), ("edit", wrong)),
    ]
    assert start(repo, api).returncode == 0
    assert api.results() == [
        "12     return max(value, high)",
        "12     return min(value, high)",
        "error: no edit to undo",
    ]
    assert "return min" in (repo / "calc/core.py").read_text()


def test_steps_and_test_runs_are_limited(repo: Path, api: Api) -> None:
    api.replies = [say(("run_tests", {})) for _ in range(3)]
    done = start(repo, api, "--max-steps", "3", "--max-test-runs", "1")
    assert done.returncode == 3
    assert api.results()[1] == "no test runs left"


def test_retries_then_goes_on(repo: Path, api: Api) -> None:
    api.replies = ["hang up", 503, say(("finish", {}))]
    assert start(repo, api).returncode == 0


@pytest.mark.parametrize("status", [400, 401, 403])
def test_refusals_end_the_session(repo: Path, api: Api, status: int) -> None:
    api.replies = [status]
    done = start(repo, api)
    assert done.returncode == 1
    assert f"HTTP {status}" in done.stderr


@pytest.mark.parametrize(
    ("options", "issue"),
    [(("--wat", "1"), ISSUE), ((), "no test named"), (("--max-steps",), ISSUE)],
)
def test_wrong_usage(repo: Path, api: Api, options: tuple[str, ...], issue: str) -> None:
    done = start(repo, api, *options, issue=issue)
    assert done.returncode == 2
    assert "usage:" in done.stderr
