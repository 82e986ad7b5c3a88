"""The host's end of `worker.py`: a warm process that runs tests against changed sources."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import IO, Protocol, Self

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """What a worker works on."""

    base: Path
    """The intact source tree; the worker gets a copy."""
    env: Path
    """The environment's folder."""
    import_root: str
    """`.` or `src`."""
    workdir: str
    """Where the tree stands in a sandbox."""


class WorkerChannel(Protocol):
    """A started worker process: one line of JSON out, one line back."""

    def ask(self, line: bytes) -> bytes:
        """The reply, or nothing where the process is gone."""
        ...

    def close(self) -> None:
        """End the process and remove its files."""
        ...


Stream = IO[bytes] | BufferedReader | BufferedWriter


class LineChannel:
    """A channel over two byte streams."""

    def __init__(self, requests: Stream, replies: Stream) -> None:
        self._requests, self._replies = requests, replies

    def ask(self, line: bytes) -> bytes:
        """See `WorkerChannel.ask`."""
        try:
            self._requests.write(line + b"\n")
            self._requests.flush()
            return self._replies.readline()
        except (OSError, ValueError):
            return b""  # the other end is gone

    def close(self) -> None:
        """Close both streams."""
        for stream in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                stream.close()


class LocalProcess(LineChannel):
    """A worker as a plain process of this machine: for packages that are trusted."""

    def __init__(self, space: Workspace) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="insitu-tests-"))
        tree = self._scratch.resolve() / "tree" / space.base.name
        shutil.copytree(space.base, tree)
        home = self._scratch / "home"
        home.mkdir()
        env = space.env.resolve()
        site = env / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        roots = [str(tree / space.import_root)] if space.import_root != "." else []
        self._process = subprocess.Popen(
            [str(env / "bin" / "python"), "-P", "-s", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tree,
            start_new_session=True,
            env={
                **TEST_ENV,
                "PATH": f"{env / 'bin'}:/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(self._scratch),
                "LANG": "C.UTF-8",
                "PYTHONPATH": ":".join([*roots, str(tree), str(site / "site-packages")]),
            },
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdin, self._process.stdout)

    def close(self) -> None:
        """End the process and remove its copy of the tree."""
        super().close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


Start = Callable[[Workspace], WorkerChannel]


class Worker:
    """A warm worker on a private copy of a source tree. Use as a context manager.

    Example: `with Worker(space) as w: w.run(["tests/test_a.py"])`.
    """

    def __init__(self, space: Workspace, start: Start = LocalProcess) -> None:
        self._space, self._start_process = space, start
        self._channel: WorkerChannel | None = None
        self._warm: list[str] = []
        self._loaded = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its copy of the tree."""
        channel, self._channel = self._channel, None
        self._loaded = ""
        if channel is not None:
            channel.close()

    def warm(
        self, tests: Sequence[str], *, run: bool = True, timeout_s: float = 120.0
    ) -> RunResult:
        """Keep warm what the tests import from outside.

        Args:
            tests: test files.
            run: run them, unchanged; else they are only imported.
            timeout_s: for all of it.
        """
        self._warm = list(tests)
        only: list[str] | None = None if run else []
        request = {"op": "warm", "tests": list(tests), "timeout": timeout_s, "only": only}
        return self._ask(request)

    def run(
        self,
        tests: Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        trace: bool = False,
        stop_early: bool = False,
        only: Sequence[str] | None = None,
    ) -> RunResult:
        """Run the tests with `files` (path to text) in place of the tree's.

        Args:
            tests: pytest node ids or files.
            files: changed files; they must exist in the tree.
            timeout_s: the whole run is killed after that.
            trace: note the functions that each test enters.
            stop_early: stop at the first failure.
            only: of the tests in `tests`, those to run; None runs all.
        """
        return self._ask(
            {
                "op": "run",
                "tests": list(tests),
                "files": dict(files or {}),
                "timeout": timeout_s,
                "trace": trace,
                "only": None if only is None else list(only),
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
        if self._channel is None or self._loaded != file:
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
        if self._channel is None:
            self._channel = self._start_process(self._space)
            if request["op"] != "warm" and self._warm:
                self.warm(self._warm, run=False)
        if self._channel is None:
            raise TaskError(
                f"{self._space.base.name}: its tests end the process that runs them",
                remedy="leave those tests out (skip_tests), or the package",
            )
        line = self._channel.ask(json.dumps(request).encode())
        if not line:
            self.close()  # the next request starts a fresh one
            return RunResult(status="crashed")
        return _result(json.loads(line))


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
