"""Runs a package's tests against changed sources. Started as a script inside a task environment.

Standard library and pytest only; it must not import insitu. Reads one JSON request per line from
standard input until it ends, and writes one JSON reply per line to standard output:

    {"op": "warm", "tests": ["tests/test_a.py"], "timeout": 60}
    {"op": "run", "id": 7, "tests": ["tests/test_a.py::test_x"], "files": {"pkg/a.py": "..."},
     "timeout": 3.0, "trace": false, "stop_early": false, "cache": false}

    {"id": 7, "status": "done" | "timeout" | "crashed", "exit": 1, "wall": 0.06, "note": "",
     "tests": {"<node id>": {"outcome": "failed", "duration": 0.004, "error": "ValueError: x",
                             "frames": [["tests/test_a.py", 12], ["pkg/a.py", 40]]}},
     "functions": {"<node id>": [["pkg/a.py", 33]]}, "modules": [...]}

Each run is a fork of this process, which has imported pytest and the package's dependencies but
never the package, so that a run costs a fork, the import of the package and its tests.
"""

import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time

import pytest

_MESSAGE = 300
_FLAGS = ("-q", "-p", "no:cacheprovider", "--tb=native", "--no-header", "--no-summary")


class Recorder:
    """A pytest plugin that notes what each test did, and on request which functions it entered."""

    def __init__(self, root, trace):
        self.root = root + os.sep
        self.trace = trace
        self.tests = {}
        self.functions = {}
        self.broken = {}
        self._entered = set()

    def _relative(self, path):
        return path[len(self.root) :] if path.startswith(self.root) else None

    def _note_call(self, frame, event, _):
        if event == "call":
            code = frame.f_code
            self._entered.add((code.co_filename, code.co_firstlineno))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        """Watch the test's own calls, with set-up and tear-down."""
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
        self.functions[item.nodeid] = sorted(p for p in places if p[0])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Note where and how a test failed."""
        yield
        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
            return
        frames, entry = [], call.excinfo.tb
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

    def pytest_runtest_logreport(self, report):
        """Note outcome and seconds."""
        entry = self._entry(report.nodeid)
        entry["duration"] += report.duration
        if report.failed:
            entry["outcome"] = "failed"
        elif report.skipped and entry["outcome"] != "failed":
            entry["outcome"] = "skipped"
        elif report.when == "call" and entry["outcome"] == "":
            entry["outcome"] = "passed"

    def pytest_collectreport(self, report):
        """Note test files that cannot be imported."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
            self.broken[report.nodeid] = lines[-1].strip()[:_MESSAGE] if lines else "error"

    def _entry(self, test):
        blank = {"outcome": "", "duration": 0.0, "error": "", "frames": []}
        return self.tests.setdefault(test, blank)


def _in_child(request, root, pycache, pipe):
    os.setsid()
    limit = int(request.get("timeout", 60)) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    output = tempfile.TemporaryFile()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.pycache_prefix = pycache
    # Only an undisturbed run may fill the cache: a mutated file's bytecode must never be reused.
    sys.dont_write_bytecode = not request.get("cache")
    recorder = Recorder(root, request.get("trace", False))
    flags = [*_FLAGS, "-x"] if request.get("stop_early") else list(_FLAGS)
    code = int(pytest.main([*flags, *request["tests"]], plugins=[recorder]))
    note = ""
    if code not in (0, 1):
        output.seek(0)
        note = output.read().decode(errors="replace").strip()[-600:]
    reply = {
        "exit": code,
        "tests": recorder.tests,
        "functions": recorder.functions,
        "broken": recorder.broken,
        "note": note,
    }
    if request["op"] == "warm":
        reply["modules"] = _outside(root)
    data = json.dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _outside(root):
    """Names of the loaded modules that do not come from the workspace."""
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) or ""
        if name != "__main__" and not origin.startswith(root + os.sep):
            names.append(name)
    return names


def _read_reply(pipe, deadline):
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None, "timeout"
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            return None, "crashed"
        data += chunk
    return json.loads(data), "done"


def _forked(request, root, pycache):
    started = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            _in_child(request, root, pycache, writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    reply, status = _read_reply(reader, started + float(request.get("timeout", 60)))
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has not made its session yet, or is gone
    except PermissionError:
        pass
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    os.close(reader)
    wall = round(time.monotonic() - started, 4)
    return {**(reply or {}), "id": request.get("id"), "status": status, "wall": wall}


def _with_files(request, root, pycache):
    """Run with `files` in place, and put the originals back with their times."""
    kept = []
    try:
        for path, text in request.get("files", {}).items():
            full = os.path.join(root, path)
            stat = os.stat(full)
            with open(full, "rb") as f:
                kept.append((full, f.read(), stat))
            with open(full, "w", encoding="utf-8", newline="") as f:
                f.write(text)
            # Another time than the original's, so that its cached bytecode is not taken.
            os.utime(full, (stat.st_atime + 10, stat.st_mtime + 10))
        return _forked(request, root, pycache)
    finally:
        for full, data, stat in kept:
            with open(full, "wb") as f:
                f.write(data)
            os.utime(full, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _preload(names):
    for name in names:
        if name not in sys.modules and not name.startswith(("test", "conftest")):
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001, S112 (only a saving of time; the fork imports it)
                continue


def main():
    """Serve requests until standard input ends."""
    root = os.path.realpath(os.getcwd())
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="pycache-") as pycache:
        for line in sys.stdin:
            request = json.loads(line)
            reply = _with_files(request, root, pycache)
            _preload(reply.pop("modules", []))
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
