"""The host's end of `worker.py`: a warm process that runs tests against changed sources."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from insitu.types import TaskError

WORKER = Path(__file__).with_name("worker.py")

TEST_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
"""What every run of a task's tests sets, wherever it happens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestResult:
    """What one test did."""

    __test__ = False

    outcome: str
    """`passed`, `failed`, `skipped`, or empty where it never ran."""
    duration: float
    """Seconds, with set-up and tear-down."""
    error: str = ""
    """Exception class and message."""
    frames: tuple[tuple[str, int], ...] = ()
    """Path and line of the traceback's frames inside the tree, outermost first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What one run did."""

    status: str
    """`done`, `timeout` or `crashed`."""
    exit_code: int = -1
    """Of pytest, where done."""
    wall_s: float = 0.0
    note: str = ""
    """Last lines of pytest's output where it could not run."""
    tests: dict[str, TestResult] = field(default_factory=dict)
    functions: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """By test, path and first line of each function it entered, where traced."""
    broken: dict[str, str] = field(default_factory=dict)
    """Test files that could not be imported, with the reason."""

    @property
    def failed(self) -> list[str]:
        """Names of the failed tests, in order."""
        return [name for name, t in self.tests.items() if t.outcome == "failed"]

    @property
    def passed(self) -> list[str]:
        """Names of the passed tests, in order."""
        return [name for name, t in self.tests.items() if t.outcome == "passed"]


def python_path(tree: str, import_root: str, env: str) -> str:
    """PYTHONPATH of a task's workspace: the package, the tree, the environment's packages."""
    site = f"{env}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    return ":".join([*([f"{tree}/{import_root}"] if import_root != "." else []), tree, site])


class Worker:
    """A warm worker on a private copy of a source tree. Use as a context manager.

    Example: `with Worker(base, env, "src") as w: w.run(["tests/test_a.py"])`.
    """

    def __init__(self, base: Path, env: Path, import_root: str) -> None:
        self._base, self._env, self._import_root = base, env, import_root
        self._scratch = Path(tempfile.mkdtemp(prefix="insitu-tests-"))
        self._tree = self._scratch / base.name
        self._process: subprocess.Popen[str] | None = None
        self._warm: list[str] = []
        self._loaded = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove the copy."""
        self._stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def warm(self, tests: Sequence[str], *, timeout_s: float = 120.0) -> RunResult:
        """Run the tests once unchanged, so that what they import from outside is kept warm."""
        self._warm = list(tests)
        return self._ask({"op": "warm", "tests": list(tests), "timeout": timeout_s})

    def run(
        self,
        tests: Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        trace: bool = False,
        stop_early: bool = False,
    ) -> RunResult:
        """Run the tests with `files` (path to text) in place of the tree's.

        Args:
            tests: pytest node ids or files.
            files: changed files; they must exist in the tree.
            timeout_s: the whole run is killed after that.
            trace: note the functions that each test enters.
            stop_early: stop at the first failure.
        """
        return self._ask(
            {
                "op": "run",
                "tests": list(tests),
                "files": dict(files or {}),
                "timeout": timeout_s,
                "trace": trace,
                "stop_early": stop_early,
            }
        )

    def swap(
        self,
        tests: Sequence[str],
        *,
        path: str,
        name: str,
        begin: int,
        line: int,
        stub: str,
        timeout_s: float,
        stop_early: bool = False,
    ) -> RunResult:
        """Run tests of one file with another code for one function: quicker than `run`.

        Equal to it for a function that nothing calls while the tests are imported, and for
        changes behind its signature; the caller sees to that. An exit code of -1 means that
        the function could not be given this code.

        Args:
            tests: pytest node ids of one file.
            path: the function's file.
            name: its bare name.
            begin: the line of its first decorator, or of `def`.
            line: the line of `def`.
            stub: what `stubs.stub` makes.
            timeout_s: the run is killed after that.
            stop_early: stop at the first failure.
        """
        file = tests[0].split("::")[0]
        if self._process is None or self._loaded != file:
            first = self._ask({"op": "load", "tests": [file], "timeout": 120.0})
            if first.status != "done" or first.exit_code != 0:
                return first
            self._loaded = file
        result = self._ask(
            {
                "op": "swap",
                "tests": list(tests),
                "path": path,
                "name": name,
                "first": begin,
                "line": line,
                "stub": stub,
                "timeout": timeout_s,
                "stop_early": stop_early,
            }
        )
        if result.status == "crashed":
            self._loaded = ""
        return result

    def _ask(self, request: Mapping[str, object]) -> RunResult:
        process = self._process or self._start(again=request["op"] != "warm")
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._stop()  # the next request starts a fresh one
            return RunResult(status="crashed")
        return _result(json.loads(line))

    def _start(self, *, again: bool) -> subprocess.Popen[str]:
        shutil.rmtree(self._tree, ignore_errors=True)
        shutil.copytree(self._base, self._tree)
        home = self._scratch / "home"
        home.mkdir(exist_ok=True)
        tree = str(self._tree.resolve())
        self._process = subprocess.Popen(
            [str(self._env / "bin" / "python"), "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            start_new_session=True,
            env={
                **TEST_ENV,
                "PATH": f"{self._env / 'bin'}:/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(self._scratch),
                "LANG": "C.UTF-8",
                "PYTHONPATH": python_path(tree, self._import_root, str(self._env.resolve())),
            },
        )
        if again and self._warm:
            self.warm(self._warm)
            if self._process is None:
                raise TaskError(f"{self._base.name}: its tests end the process that runs them")
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        self._loaded = ""
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        process.wait()


def _result(reply: Mapping[str, object]) -> RunResult:
    tests, functions, broken = (reply.get(k) or {} for k in ("tests", "functions", "broken"))
    assert isinstance(tests, dict)
    assert isinstance(functions, dict)
    assert isinstance(broken, dict)
    return RunResult(
        status=str(reply["status"]),
        exit_code=int(str(reply.get("exit", -1))),
        wall_s=float(str(reply["wall"])),
        note=str(reply.get("note", "")),
        tests={
            name: TestResult(
                outcome=t["outcome"],
                duration=t["duration"],
                error=t["error"],
                frames=tuple((p, n) for p, n in t["frames"]),
            )
            for name, t in tests.items()
        },
        functions={name: tuple((p, n) for p, n in places) for name, places in functions.items()},
        broken=broken,
    )
