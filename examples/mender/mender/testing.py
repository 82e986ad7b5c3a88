"""Runs one test in a child process, forked from this one with pytest already imported.

The child imports the repository fresh, so it sees the files as they are now; this process
never imports anything from it.
"""

import contextlib
import functools
import gc
import io
import os
import select
import signal
import sys
import time
from pathlib import Path

from mender import report, speed, texts

TIMEOUT_S = 20.0
_MEMORY = 1 << 29  # bytes more than now: a runaway test must not take the agent with it
_ENOUGH = 65_536  # bytes of report that are read

_UNUSED = ("cacheprovider", "junitxml", "pastebin", "stepwise", "faulthandler")

# No files left behind, no plugin beyond what running one test takes.
_OPTIONS = [
    "-q",
    "-x",
    "--tb=native",  # nobody reads pytest's own report: the cheapest there is
    "--capture=sys",
    "-o",
    "addopts=",
    *(f"-pno:{name}" for name in _UNUSED),
]


def run(root: Path, test: str, timeout_s: float = TIMEOUT_S) -> str:
    """Run the test; a short report."""
    _warm_up()
    cache = _cache_folder()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(root, test, cache, reader, writer)
    os.close(writer)
    try:
        answer = _read(reader, time.monotonic() + timeout_s)
    finally:
        os.close(reader)
        _end(child)
    if answer is None:
        return texts.TIMED_OUT.format(test=test)
    return answer or texts.CRASHED.format(test=test)


def _warm_up() -> None:
    """Import pytest and its own plugins; only now, because that costs more than all else."""
    if "pytest" in sys.modules:
        return
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    from importlib import import_module

    config = import_module("_pytest.config")
    for name in set(config.default_plugins) - set(_UNUSED):
        import_module(f"_pytest.{name}")
    gc.freeze()  # the children share what is there now, untouched by their collections


@functools.cache
def _cache_folder() -> Path:
    """A folder for compiled code, for as long as this process lives."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="mender-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _child(root: Path, test: str, cache: Path, reader: int, writer: int) -> None:
    """Never returns."""
    try:
        os.close(reader)
        os.setpgid(0, 0)
        _limit_memory()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.chdir(root)
        sys.path[:0] = [str(root), *([str(root / "src")] if (root / "src").is_dir() else [])]
        os.write(writer, _pytest(root, test, cache).encode(errors="replace")[:_ENOUGH])
    finally:
        os._exit(0)


def _pytest(root: Path, test: str, cache: Path) -> str:
    import pytest

    speed.leave_out_other_tests(test)
    speed.remember_compiled(cache, test)
    listener = report.Listener(root)
    complaint = io.StringIO()
    with contextlib.redirect_stderr(complaint):
        pytest.main([test, f"--rootdir={root}", *_OPTIONS], plugins=[listener])
    return listener.text(test, complaint.getvalue())


def _limit_memory() -> None:
    import resource

    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, now + _MEMORY))


def _read(reader: int, deadline: float) -> str | None:
    """What the child wrote; None when the deadline came first."""
    parts = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        part = os.read(reader, _ENOUGH)
        if not part:
            return parts.decode()
        parts += part


def _end(child: int) -> None:
    """End the child and what it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:
            continue
    os.waitpid(child, 0)
