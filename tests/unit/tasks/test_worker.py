import re
from pathlib import Path

import pytest

from insitu.sandbox.paths import find_bwrap
from insitu.tasks.bench import Bench
from insitu.tasks.confine import SandboxHost
from insitu.tasks.mutate import candidate_edits, list_functions
from insitu.tasks.runner import LocalProcess, Worker, Workspace
from insitu.tasks.stubs import locate, stub
from insitu.tasks.survey import Target
from insitu.types import Edit
from tests.unit.tasks.conftest import real_packages

PATH = "src/shapes/core.py"
FILE = "tests/test_core.py"
TESTS = tuple(
    f"{FILE}::{name}"
    for name in ("test_clip", "test_clip_strict", "test_split", "test_chunks_size")
)


@pytest.fixture(params=["process", "sandbox"])
def worker(request, package, taskset):
    env = next((taskset / "envs").iterdir())
    space = Workspace(base=package, env=env, import_root="src", workdir="/home/dev/shapes")
    if request.param == "process":
        with Worker(space) as made:
            yield made
        return
    if find_bwrap() is None:
        pytest.skip("no bubblewrap")
    real_packages(env)
    with SandboxHost("bubblewrap") as host, Worker(space, host.start) as made:
        yield made


def plain(message):
    return re.sub(r"x[0-9a-f]{8,}", "x…", message)


def target_of(text, name, at=0):
    qualname, first, last = [f for f in list_functions(text) if f[0] == name][at]
    return Target(
        path=PATH,
        qualname=qualname,
        first_line=first,
        last_line=last,
        tests=TESTS,
        at_import=False,
        base_s=0.1,
    )


def test_a_run_reports_tests_frames_and_functions(worker, package):
    worker.warm([FILE])
    traced = worker.run([FILE], trace=True)
    assert len(traced.passed) == 7
    assert traced.failed == []
    assert (PATH, 41) in [(p, n) for p, n in traced.functions[f"{FILE}::test_chunks_size"]] or any(
        p == PATH for p, _ in traced.functions[f"{FILE}::test_chunks_size"]
    )
    text = (package / PATH).read_text()
    broken = worker.run(
        TESTS, files={PATH: text.replace('raise ValueError("size")', "raise KeyError(0)")}
    )
    assert broken.failed == [f"{FILE}::test_chunks_size"]
    result = broken.tests[f"{FILE}::test_chunks_size"]
    assert result.error == "KeyError: 0"
    assert [path for path, _ in result.frames] == [FILE, PATH]
    assert worker.run(TESTS).failed == []


def test_a_swap_says_what_a_fresh_import_says(worker, package):
    text = (package / PATH).read_text()
    worker.warm([FILE])
    for name in ("Range.clip", "Range.split", "chunks"):
        target = target_of(text, name)
        bench = Bench(worker, text, target, at_import=False)
        edits = candidate_edits(text, PATH, target.first_line, target.last_line)
        for edit, _ in edits[:: max(1, len(edits) // 5)]:
            quick, fresh = bench.run(TESTS, (edit,)), bench.run(TESTS, (edit,), fresh=True)
            assert (quick.failed, quick.passed) == (fresh.failed, fresh.passed), edit
            assert quick.tests.keys() == fresh.tests.keys()
            for test in quick.failed:
                assert plain(quick.tests[test].error) == plain(fresh.tests[test].error)
                assert quick.tests[test].frames == fresh.tests[test].frames


def test_endless_loops_and_exits_are_contained(worker, package):
    text = (package / PATH).read_text()
    worker.warm([FILE])
    for body, status in (
        ("while True: pass", "timeout"),
        ("import os; os._exit(0)", "crashed"),
        ("import os; os.kill(os.getppid(), 0); os.abort()", "crashed"),
    ):
        changed = text.replace("found = []", body)
        result = worker.run(
            [f"{FILE}::test_chunks_size", f"{FILE}::test_chunks[1]"],
            files={PATH: changed},
            timeout_s=3.0,
        )
        assert result.status == status
    assert worker.run(TESTS).failed == []


def test_a_file_that_cannot_be_imported_is_named(worker):
    worker.warm([FILE])
    result = worker.run([FILE], files={PATH: "raise RuntimeError('no')\n"})
    assert FILE in next(iter(result.broken))
    assert "RuntimeError: no" in next(iter(result.broken.values()))


def test_the_base_is_never_written_to(package, taskset):
    env = next((taskset / "envs").iterdir())
    before = {p: p.stat().st_mtime_ns for p in package.rglob("*")}
    space = Workspace(base=package, env=env, import_root="src", workdir="/home/dev/shapes")
    start = LocalProcess(space)
    scratch = Path(f"/proc/{start._process.pid}/cwd").readlink()
    start.close()
    assert not scratch.exists()
    assert {p: p.stat().st_mtime_ns for p in package.rglob("*")} == before


def test_a_stub_puts_a_function_at_its_place():
    text = (
        "import a\nclass A:\n    if a:\n        x = 1\n    elif b:\n        @property\n"
        "        def f(self):\n            return __class__\n\n\ndef g():\n    pass\n"
    )
    assert locate(text, 7).begin == 6
    assert locate(text, 7).body == 8
    made = stub(text, text, 7, 8)
    assert made.split("\n")[6] == "        def f(self):"
    compile(made, "a.py", "exec")
    with pytest.raises(LookupError):
        locate(text, 3)


def test_edits_in_the_signature_are_run_fresh(worker, package):
    text = (package / PATH).read_text()
    worker.warm([FILE])
    target = target_of(text, "Range.clip")
    line = text.split("\n")[target.first_line - 1]
    edit = Edit(
        path=PATH, line=target.first_line, old="False", new="True", column=line.index("False")
    )
    result = Bench(worker, text, target, at_import=False).run(TESTS, (edit,))
    assert result.failed == [f"{FILE}::test_clip"]
