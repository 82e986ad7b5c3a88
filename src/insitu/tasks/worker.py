"""Runs a package's tests against changed sources. Started as a script inside a task environment.

Standard library and pytest only; it must not import insitu. Reads one JSON request per line until
there are no more, and writes one JSON reply per line: on standard input and output, or, given the
number of a local port, over one connection to it.

    {"op": "warm", "tests": ["tests/test_a.py"], "timeout": 60, "only": null}
    {"op": "run", "tests": ["tests/test_a.py::test_x"], "files": {"pkg/a.py": "..."},
     "timeout": 3.0, "trace": false, "stop_early": false, "only": null}
    {"op": "load", "tests": ["tests/test_a.py"], "timeout": 60}
    {"op": "swap", "tests": [...], "path": "pkg/a.py", "name": "f", "line": 33, "stub": "...",
     "timeout": 3.0, "stop_early": false}

    {"status": "done" | "timeout" | "crashed", "exit": 1, "wall": 0.06, "note": "",
     "tests": {"<node id>": {"outcome": "failed", "duration": 0.004, "error": "ValueError: x",
                             "frames": [["tests/test_a.py", 12], ["pkg/a.py", 40]]}},
     "functions": {"<node id>": [["pkg/a.py", 33]]}, "broken": {}}

`run` is a fork of this process, which has imported pytest and the package's dependencies but
never the package: exact, for the price of importing the package and its tests. `load` keeps a
fork in which the tests of some files are collected; `swap` forks that one and gives the function
that stands at `path`:`line` the code that `stub` defines: several times quicker, and equal for a
function that nothing called while the tests were imported. No fork keeps a way to answer for
another.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

import pytest

Json = dict[str, Any]

_MESSAGE = 300
_FLAGS = ("-q", "-p", "no:cacheprovider", "--tb=native", "--no-header", "--no-summary")
_channel: list[int] = []
"""Descriptors by which the host is answered: closed in every fork."""
_FUTURE = 0x1FF0000
"""The flags of a code object that `from __future__` imports set."""


class TestRecorder:
    """A pytest plugin that notes what each test did, and on request which functions it entered."""

    def __init__(self, root: str, *, trace: bool = False, only: list[str] | None = None) -> None:
        self.root = root + os.sep
        self.trace = trace
        self.only = None if only is None else set(only)
        self.clear()
        self.functions: dict[str, list[tuple[str, int]]] = {}
        self._entered: set[tuple[str, int]] = set()

    def clear(self) -> None:
        """Forget all tests."""
        self.tests: dict[str, Json] = {}
        self.broken: dict[str, str] = {}

    def reply(self, code: int, note: str = "") -> Json:
        """What was noted."""
        return {
            "exit": code,
            "tests": self.tests,
            "functions": self.functions,
            "broken": self.broken,
            "note": note,
        }

    def _relative(self, path: str) -> str:
        return path[len(self.root) :] if path.startswith(self.root) else ""

    def _note_call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            self._entered.add((code.co_filename, code.co_firstlineno))

    @contextlib.contextmanager
    def _watch(self, name: str) -> Iterator[None]:
        if not self.trace:
            yield
            return
        self._entered = set()
        threading.settrace(self._note_call)
        sys.settrace(self._note_call)
        yield
        sys.settrace(None)
        threading.settrace(None)
        places = ((self._relative(path), line) for path, line in self._entered)
        self.functions[name] = sorted(p for p in places if p[0])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Watch what is called while test files are imported; its name is empty."""
        with self._watch(""):
            yield

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests asked for."""
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid in self.only]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch the test's own calls, with set-up and tear-down."""
        with self._watch(item.nodeid):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Note where and how a test failed."""
        yield
        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
            return
        frames = []
        entry: TracebackType | None = call.excinfo.tb
        while entry is not None:
            path = self._relative(entry.tb_frame.f_code.co_filename)
            if path:
                frames.append([path, entry.tb_lineno])
            entry = entry.tb_next
        try:
            text = str(call.excinfo.value)
        except Exception as broken:  # noqa: BLE001 (a mutated package may break __str__)
            text = f"<{type(broken).__name__}>"
        self._entry(item.nodeid).update(
            frames=frames[-12:], error=f"{call.excinfo.typename}: {text[:_MESSAGE]}"
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note outcome and seconds."""
        entry = self._entry(report.nodeid)
        entry["duration"] += report.duration
        if report.failed:
            entry["outcome"] = "failed"
        elif report.skipped and entry["outcome"] != "failed":
            entry["outcome"] = "skipped"
        elif report.when == "call" and entry["outcome"] == "":
            entry["outcome"] = "passed"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note test files that cannot be imported."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
            self.broken[report.nodeid] = lines[-1].strip()[:_MESSAGE] if lines else "error"

    def _entry(self, test: str) -> Json:
        blank = {"outcome": "", "duration": 0.0, "error": "", "frames": []}
        return self.tests.setdefault(test, blank)


class Server(TestRecorder):
    """Serves `swap` requests where pytest would run the tests it has collected."""

    def __init__(self, root: str, requests: int, replies: int) -> None:
        super().__init__(root)
        self._requests, self._replies = requests, replies
        self._known: dict[tuple[str, str], list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer until the pipe closes."""
        items = {item.nodeid: item for item in session.items}
        for f in gc.get_objects():  # before freezing, which hides them
            if type(f) is FunctionType and f.__code__.co_filename.startswith(self.root):
                key = (f.__code__.co_filename, f.__code__.co_name)
                self._known.setdefault(key, []).append(f)
        _settle()
        _send(self._replies, {**self.reply(0), "status": "done", "wall": 0.0})
        for line in os.fdopen(self._requests, "rb", closefd=False):
            request = json.loads(line)
            reply = _supervised(lambda pipe, r=request: self._swapped(r, items, pipe), request)  # type: ignore[misc]
            _send(self._replies, reply)
        os._exit(0)

    def _swapped(self, request: Json, items: dict[str, pytest.Item], pipe: int) -> None:
        os.setsid()
        _limit(request)
        self.clear()
        os.close(self._replies)
        os.close(self._requests)
        if not self._swap(request):
            _send(pipe, self.reply(-1, "no such function"))
            return
        chosen = [items[name] for name in request["tests"] if name in items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if request.get("stop_early") and self.tests[item.nodeid]["outcome"] == "failed":
                break
        failed = any(t["outcome"] == "failed" for t in self.tests.values())
        _send(pipe, self.reply(int(failed)))

    def _swap(self, request: Json) -> bool:
        path, line, name = self.root + request["path"], request["line"], request["name"]
        found = [
            f
            for f in self._known.get((path, name), ())
            if request["first"] <= f.__code__.co_firstlineno <= line
        ]
        if not found:
            return False
        flags = found[0].__code__.co_flags & _FUTURE
        code = _find(compile(request["stub"], path, "exec", flags, dont_inherit=True), name, line)
        if code is None:
            return False
        try:
            for function in found:
                function.__code__ = code
        except ValueError:  # it takes another number of variables from outside
            return False
        return True


def _find(code: CodeType, name: str, line: int) -> CodeType | None:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_name == name and part.co_firstlineno == line:
                return part
            deeper = _find(part, name, line)
            if deeper is not None:
                return deeper
    return None


def _settle() -> None:
    """Keep the collector away from what the forks share: touching it would copy it."""
    gc.collect()
    gc.freeze()


def _send(pipe: int, reply: Json) -> None:
    data = json.dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _limit(request: Json) -> None:
    seconds = int(request.get("timeout", 60)) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def _quiet() -> int:
    """Standard input empty, standard output and error into a file; its descriptor."""
    os.setsid()
    for descriptor in _channel:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    descriptor, name = tempfile.mkstemp()
    Path(name).unlink()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    return descriptor


def _run(request: Json, root: str, pycache: str, pipe: int) -> None:
    output = _quiet()
    _limit(request)
    sys.pycache_prefix = pycache
    # Only an undisturbed run may fill the cache: a mutated file's bytecode must never be reused.
    sys.dont_write_bytecode = request["op"] != "warm"
    recorder = TestRecorder(root, trace=request.get("trace", False), only=request.get("only"))
    flags = [*_FLAGS, "-x"] if request.get("stop_early") else list(_FLAGS)
    code = int(pytest.main([*flags, *request["tests"]], plugins=[recorder]))
    note = ""
    if code not in (0, 1):
        os.lseek(output, 0, os.SEEK_SET)
        note = os.read(output, 1 << 20).decode(errors="replace").strip()[-600:]
    reply = recorder.reply(code, note)
    if request["op"] == "warm":
        reply["modules"] = _outside(root)
    _send(pipe, reply)


def _outside(root: str) -> list[str]:
    """Names of the loaded modules that do not come from the workspace."""
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) or ""
        if name != "__main__" and not origin.startswith(root + os.sep):
            names.append(name)
    return names


def _receive(pipe: int, deadline: float) -> tuple[Json, str]:
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return {}, "timeout"
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            return {}, "crashed"
        data += chunk
    return json.loads(data), "done"


def _supervised(work: Callable[[int], None], request: Json) -> Json:
    """Do `work` in a fork; it sends one reply, or is killed at the request's time-out."""
    started = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    reply, status = _receive(reader, started + float(request.get("timeout", 60)))
    _end(child)
    os.close(reader)
    return {**reply, "status": status, "wall": round(time.monotonic() - started, 4)}


def _end(child: int) -> None:
    """Kill a fork, with its session if it has made one, and take its exit status."""
    with contextlib.suppress(ProcessLookupError):
        if os.getsid(child) == child:
            os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _with_files(request: Json, root: str, pycache: str) -> Json:
    """Run with `files` in place, and put the originals back with their times."""
    kept = []
    try:
        for name, text in request.get("files", {}).items():
            path = Path(root, name)
            info = path.stat()
            kept.append((path, path.read_bytes(), info))
            path.write_bytes(text.encode())
            # Another time than the original's, so that its cached bytecode is not taken.
            os.utime(path, (info.st_atime + 10, info.st_mtime + 10))
        return _supervised(lambda pipe: _run(request, root, pycache, pipe), request)
    finally:
        for path, data, info in kept:
            path.write_bytes(data)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


class LoadedTests:
    """A fork that has collected the tests of some files."""

    def __init__(self, request: Json, root: str, pycache: str) -> None:
        reader, self._requests = os.pipe()
        self._replies, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._requests)
                os.close(self._replies)
                _quiet()
                sys.pycache_prefix = pycache
                server = Server(root, reader, writer)
                code = int(pytest.main([*_FLAGS, *request["tests"]], plugins=[server]))
                _send(writer, {**server.reply(code), "status": "done", "wall": 0.0})
            finally:
                os._exit(0)
        os.close(reader)
        os.close(writer)
        _channel.extend((self._requests, self._replies))
        self.first = self._await(request)

    def ask(self, request: Json) -> Json:
        """Hand a `swap` request on."""
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return {"status": "crashed", "wall": 0.0}
        return self._await({**request, "timeout": float(request.get("timeout", 60)) + 10})

    def _await(self, request: Json) -> Json:
        deadline = time.monotonic() + float(request.get("timeout", 60))
        reply, status = _receive(self._replies, deadline)
        return reply or {"status": status, "wall": 0.0}

    def close(self) -> None:
        """End it."""
        _end(self._child)
        for descriptor in (self._requests, self._replies):
            _channel.remove(descriptor)
            os.close(descriptor)


def _preload(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules and not name.startswith(("test", "conftest")):
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 (others' code; a fork that needs it fails itself)
                sys.stderr.write(f"{name} is not kept warm: {error!r}\n")
    _settle()


def main() -> None:
    """Serve requests until standard input ends."""
    root = str(Path.cwd().resolve())
    if len(sys.argv) > 1:
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        requests, replies = connection.makefile("rb"), connection.fileno()
    else:
        requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
        os.dup2(2, 1)
        _channel.append(requests.fileno())
    _channel.append(replies)
    loaded: LoadedTests | None = None
    with tempfile.TemporaryDirectory(prefix="pycache-") as pycache:
        for line in requests:
            request = json.loads(line)
            if request["op"] == "load":
                if loaded:
                    loaded.close()
                loaded = LoadedTests(request, root, pycache)
                reply = loaded.first
            elif request["op"] == "swap":
                reply = loaded.ask(request) if loaded else {"status": "crashed", "wall": 0.0}
            else:
                reply = _with_files(request, root, pycache)
                if request["op"] == "warm":
                    _preload(reply.pop("modules", []))
            _send(replies, reply)
        if loaded:
            loaded.close()


if __name__ == "__main__":
    main()
