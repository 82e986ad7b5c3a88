"""The verifier in real sandboxes: honest work passes, tricks do not."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

from insitu.reward.cache import VerdictCache, changes_digest
from insitu.reward.verify import Verifier, read_report
from insitu.sandbox.backends import open_backend
from insitu.types import Change, ChangeKind, ExecResult, SandboxError, Task, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD = "def add(a, b):\n    return a + b\n"
NAMES = ("tests/test_core.py::test_add", "tests/test_core.py::test_zero")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory):
    made = open_backend("bubblewrap", tmp_path_factory.mktemp("boxes"))
    problems = await made.preflight()
    if problems:
        pytest.skip(f"no sandbox here: {problems}")
    yield made
    await made.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = tmp_path_factory.mktemp("set")
    (root / "base/pkg").mkdir(parents=True)
    (root / "base/tests").mkdir()
    (root / "base/pkg/__init__.py").touch()
    (root / "base/pkg/core.py").write_text("def add(a, b):\n    return a - b\n")
    (root / "base/tests/test_core.py").write_text(
        "from pkg.core import add\n\n"
        "def test_add():\n    assert add(1, 2) == 3\n\n"
        "def test_zero():\n    assert add(0, 0) == 0\n"
    )
    site = root / "env/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
        origin = Path(importlib.util.find_spec(name).origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, site / name)
        else:
            shutil.copy(origin, site)
    (root / "task/tests").mkdir(parents=True)
    return Task(
        task_id="t", folder=str(root / "task"), instruction="", layers=(str(root / "base"),),
        workdir="/home/dev/pkg", env_path=str(root / "env"), agent_timeout_s=9,
        verifier_timeout_s=20, fail_to_pass=NAMES[:1], pass_to_pass=NAMES[1:], digest="d1",
    )  # fmt: skip


def change(text, path="pkg/core.py", kind=ChangeKind.MODIFIED):
    return Change(path=path, kind=kind, content=text.encode())


async def test_a_right_fix_passes_and_is_known_the_second_time(backend, task, tmp_path):
    verifier = Verifier(backend, tmp_path)
    first = await verifier.judge(task, [change(GOOD)])
    assert (first.passed, first.tests_passed, first.tests_total) == (True, 2, 2), first
    again = await verifier.judge(task, [change(GOOD)])
    assert again.cached
    assert again.passed
    fresh = await Verifier(backend, tmp_path).judge(task, [change(GOOD)])
    assert fresh.cached


async def test_a_wrong_fix_fails_with_its_evidence(backend, task):
    verdict = await Verifier(backend).judge(task, [change("def add(a, b):\n    return a * b\n")])
    assert (verdict.passed, verdict.tests_passed) == (False, 1)
    assert "test_add failed" in verdict.detail
    assert "assert 2 == 3" in verdict.detail


async def test_no_changes_are_judged_without_running(task):
    verdict = await Verifier(None).judge(task, [])
    assert (verdict.passed, verdict.detail) == (False, "nothing changed")
    tests_only = [change("def test_add(): pass\n", "tests/test_core.py")]
    verdict = await Verifier(None).judge(task, tests_only)
    assert (verdict.passed, verdict.tests_total) == (False, 2)
    assert "tests/test_core.py" in verdict.detail


WRONG = "def add(a, b):\n    return 7\n"
TRICKS = {
    "leaves at once": "import os\nos._exit(0)\n",
    "prints a pass": "print('2 passed')\nraise SystemExit(0)\n",
    "skips": "import pytest\npytest.skip(allow_module_level=True)\n",
    "swaps pytest": "import _pytest.runner as r\nr.pytest_runtest_call = lambda item: None\n"
    + WRONG,
    "swaps unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n" + GOOD,
    "forges the report": (
        "import os, json\n"
        "for fd in range(256):\n"
        "    try: os.write(fd, b'0' * 32 + b' ' + json.dumps({'outcomes': 'PP', 'exit': 0, "
        "'harness': True, 'errors': {}}).encode() + b'\\n')\n"
        "    except OSError: pass\n"
        "os._exit(0)\n"
    ),
    "does not parse": "def add(a, b:\n",
    "leaves later": "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG,
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_tricks_do_not_pass(backend, task, trick):
    verdict = await Verifier(backend).judge(task, [change(TRICKS[trick])])
    assert not verdict.passed, verdict
    assert verdict.detail


async def test_planted_helpers_are_left_behind(backend, task):
    planted = [
        change(
            "import pytest\n@pytest.fixture(autouse=True)\ndef f(): pytest.skip()\n",
            "conftest.py",
            ChangeKind.ADDED,
        ),
        change("[pytest]\naddopts = --collect-only\n", "pytest.ini", ChangeKind.ADDED),
        change("raise SystemExit(0)\n", "pytest.py", ChangeKind.ADDED),
        change("def test_add(): pass\ndef test_zero(): pass\n", "tests/test_core.py"),
        change(WRONG),
    ]
    verdict = await Verifier(backend).judge(task, planted)
    assert (verdict.passed, verdict.tests_passed) == (False, 0)
    right = await Verifier(backend).judge(task, [*planted[:-1], change(GOOD)])
    assert right.passed


async def test_a_time_out_is_an_outcome(backend, task):
    hasty = Task(**{**{n: getattr(task, n) for n in task.__slots__}, "verifier_timeout_s": 1.0})
    verdict = await Verifier(backend).judge(hasty, [change("while True: pass\n")])
    assert (verdict.passed, verdict.detail) == (False, "timed out after 1 s")


async def test_changes_that_do_not_fit_are_an_outcome(backend, task):
    verdict = await Verifier(backend).judge(task, [change("x", "pkg")])
    assert not verdict.passed
    assert "do not apply" in verdict.detail


async def test_a_judge_that_cannot_start_is_a_fault(backend, task, tmp_path):
    blank = Task(**{**{n: getattr(task, n) for n in task.__slots__}, "env_path": str(tmp_path)})
    with pytest.raises(SandboxError, match="No module named 'pytest'"):
        await Verifier(backend).judge(blank, [change(GOOD)])


@pytest.mark.parametrize(
    ("script", "passed"),
    [
        ("mkdir -p /logs/verifier; grep -q 'a + b' pkg/core.py && r=1 || r=0; echo $r > /logs/verifier/reward.txt", True),
        ("mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt", False),
        ("grep -q 'a + b' pkg/core.py", True),
        ("exit 1", False),
    ],
)  # fmt: skip
async def test_a_task_without_named_tests_is_judged_by_its_script(
    backend, task, tmp_path, script, passed
):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text(script)
    fields = {n: getattr(task, n) for n in task.__slots__}
    plain = Task(
        **{**fields, "folder": str(tmp_path), "fail_to_pass": (), "pass_to_pass": (), "digest": ""}
    )
    verdict = await Verifier(backend).judge(plain, [change(GOOD)])
    assert (verdict.passed, verdict.tests_total) == (passed, 1), verdict


def _ran(report, exit_code=0, nonce=b"n"):
    lines = [nonce + b' {"ready": "8"}', nonce + b" " + json.dumps(report).encode(), b""]
    return ExecResult(exit_code=exit_code, stdout=b"\n".join(lines), stderr=b"")


REPORT = {"outcomes": "PP", "exit": 0, "harness": True, "errors": {}}


@pytest.mark.parametrize(
    ("result", "passed"),
    [
        (_ran(REPORT), True),
        (_ran(REPORT, exit_code=1), False),
        (_ran({**REPORT, "outcomes": "P"}), False),
        (_ran({**REPORT, "outcomes": "PPP"}), False),
        (_ran({**REPORT, "outcomes": "PM"}), False),
        (_ran({**REPORT, "outcomes": "SP"}), False),
        (_ran({**REPORT, "harness": False}), False),
        (_ran({**REPORT, "exit": 1}, exit_code=1), False),
    ],
)
async def test_only_a_report_that_agrees_with_the_run_passes(result, passed):
    assert read_report(result, "n", NAMES, 9.0, 0.0).passed is passed


async def test_a_report_without_the_nonce_is_none():
    with pytest.raises(SandboxError):
        read_report(_ran(REPORT, nonce=b"x"), "n", NAMES, 9.0, 0.0)


async def test_the_cache_survives_damage(tmp_path):
    cache = VerdictCache(tmp_path)
    cache.put("abcd", Verdict(passed=True, tests_passed=1, tests_total=1))
    assert VerdictCache(tmp_path).get("abcd").passed
    (tmp_path / "ab/abcd.json").write_text("{half")
    assert VerdictCache(tmp_path).get("abcd") is None
    assert cache.get("none") is None


async def test_the_digest_of_changes_ignores_their_order_only():
    a, b = change("a", "a"), change("b", "b")
    assert changes_digest([a, b]) == changes_digest([b, a])
    other = Change(path="a", kind=ChangeKind.MODIFIED, content=b"a", mode=0o755)
    assert changes_digest([a]) != changes_digest([other])
