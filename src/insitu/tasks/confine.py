"""Workers in sandboxes: a package's own code and tests are code from strangers."""

import asyncio
import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from insitu.sandbox import paths
from insitu.sandbox.backends import open_backend
from insitu.sandbox.base import Sandbox, SandboxBackend
from insitu.tasks.runner import TEST_ENV, WORKER, LineChannel, WorkerChannel, Workspace
from insitu.types import ExecResult, Forward, Limits, Mount, SandboxError, SandboxSpec, TaskError

T = TypeVar("T")
_PORT = 9131
_TARGET = "/opt/worker/run.py"
_LIMITS = Limits(memory_mb=3072, pids=128, cpus=2.0, open_files=512, disk_mb=512)
_LONGEST_S = 12 * 3600.0
_START_S = 60.0
_POLL_S = 0.2


class SandboxHost:
    """Starts workers in sandboxes of one back-end. Use as a context manager.

    A back-end belongs to an event loop; this owns one, in a thread, so that the builder can
    stay plain blocking code.
    """

    def __init__(self, backend: str) -> None:
        self._name = backend
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._folder = tempfile.TemporaryDirectory(prefix="insitu-host-")
        self._backend: SandboxBackend | None = None
        self._count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "SandboxHost":
        """Start the thread and try the back-end.

        Raises:
            TaskError: the back-end does not work on this machine.
        """
        self._thread.start()
        self._backend = open_backend(self._name, Path(self._folder.name) / "box")
        problems = self._wait(self._backend.preflight())
        if problems:
            self.__exit__()
            raise TaskError(
                f"tasks cannot be built in a sandbox here: {problems[0]}",
                remedy="see `insitu doctor`",
            )
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy all sandboxes and end the thread."""
        if self._backend is not None:
            self._wait(self._backend.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()

    def start(self, space: Workspace) -> WorkerChannel:
        """A worker in a fresh sandbox.

        Raises:
            SandboxError: it could not be started.
        """
        with self._lock:
            self._count += 1
            path = Path(self._folder.name) / f"{self._count}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(_POLL_S)
            sandbox, running = self._wait(self._launch(space, path))
            connection = self._accept(listener, running)
        if connection is None:
            self.end(sandbox, running)
            raise SandboxError(f"a test worker did not start in its sandbox: {_said(running)}")
        return _Confined(self, connection, sandbox, running)

    @staticmethod
    def _accept(
        listener: socket.socket, running: "asyncio.Task[ExecResult]"
    ) -> socket.socket | None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and not running.done():
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        return None

    async def _launch(
        self, space: Workspace, socket_path: Path
    ) -> tuple[Sandbox, "asyncio.Task[ExecResult]"]:
        assert self._backend is not None
        sandbox = await self._backend.create(_spec(space, socket_path))
        argv = [paths.interpreter(), "-P", "-s", _TARGET, str(_PORT)]
        return sandbox, asyncio.create_task(sandbox.exec(argv, timeout_s=_LONGEST_S))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self, sandbox: Sandbox, running: "asyncio.Task[ExecResult]") -> None:
        """Destroy a worker's sandbox."""
        self._wait(_end(sandbox, running))


def _said(running: "asyncio.Task[ExecResult]") -> str:
    if not running.done() or running.cancelled() or running.exception():
        return "no answer"
    lines = running.result().stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {running.result().exit_code}"


async def _end(sandbox: Sandbox, running: "asyncio.Task[ExecResult]") -> None:
    await sandbox.destroy()
    await asyncio.gather(running, return_exceptions=True)


class _Confined(LineChannel):
    def __init__(
        self,
        host: SandboxHost,
        connection: socket.socket,
        sandbox: Sandbox,
        running: "asyncio.Task[ExecResult]",
    ) -> None:
        super().__init__(connection.makefile("wb"), connection.makefile("rb"))
        self._host, self._connection = host, connection
        self._sandbox, self._running = sandbox, running

    def close(self) -> None:
        super().close()
        self._connection.close()
        self._host.end(self._sandbox, self._running)


def _spec(space: Workspace, socket_path: Path) -> SandboxSpec:
    packages = paths.packages_inside(space.env)
    tree = space.workdir
    roots = [*([f"{tree}/{space.import_root}"] if space.import_root != "." else []), tree]
    return SandboxSpec(
        layers=(str(space.base.resolve()),),
        workdir=tree,
        mounts=(
            *paths.interpreter_mounts(),
            Mount(source=str(space.env.resolve()), target=paths.ENV_TARGET),
            Mount(source=str(WORKER), target=_TARGET),
        ),
        env={**TEST_ENV, "PYTHONPATH": ":".join([*roots, packages])},
        forwards=(Forward(port=_PORT, socket=str(socket_path)),),
        limits=_LIMITS,
    )
