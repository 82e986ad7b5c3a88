"""Services as processes of this machine: started, watched, restarted."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from insitu.kit.log import get_log
from insitu.types import BoundaryError, InsituError, UsageError

_log = get_log("fleet")
_MENDABLE = 2
"""Exit code of a service that met an error which the user can fix; told on its last line."""


class ServiceError(InsituError):
    """A service died too often; names it and the file with its last words."""


@dataclass(kw_only=True)
class LocalService:
    """One process that is kept alive.

    The command is asked for at each start, so that a restarted engine begins with the newest
    weights. The process gets a process group of its own, which is ended as a whole.
    """

    name: str
    command: Callable[[], Sequence[str]]
    healthy: Callable[[], Awaitable[bool]]
    """Whether it answers; must not raise anything but `BoundaryError`."""
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment."""
    on_death: Callable[[str, str], None] = lambda _name, _cause: None
    start_timeout_s: float = 120.0
    max_deaths: int = 5
    """Deaths within `death_window_s` after which the service is given up."""
    death_window_s: float = 60.0
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _watcher: asyncio.Task[None] | None = None
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: InsituError | None = None
    _said: int = 0
    """Bytes of the log before the running process."""

    @property
    def pid(self) -> int:
        """Process id of the running process; 0 if there is none."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    async def start(self) -> None:
        """Start and wait until it is healthy.

        Raises:
            UsageError: it ended at once and says what the user has to change.
            ServiceError: it did not become healthy.
        """
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")
        await self.ready()

    async def ready(self) -> None:
        """Wait until the service is up, through restarts if need be.

        Raises:
            UsageError, ServiceError: it was given up.
        """
        while not self._up.is_set() and self._failure is None:
            waiter = asyncio.create_task(self._up.wait())
            watcher = self._watcher
            if watcher is None:
                raise ServiceError(f"{self.name} was not started")
            await asyncio.wait({waiter, watcher}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
        if self._failure is not None:
            raise self._failure

    async def given_up(self) -> InsituError:
        """Wait until the service is given up, which may be never; why it was."""
        await self._end.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self) -> None:
        """End the process group: first asked, after three seconds forced."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        process = self._process
        if process is not None and process.returncode is None:
            _kill_group(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), 3.0)
            except TimeoutError:
                _kill_group(process.pid, signal.SIGKILL)
                await process.wait()
        self._up.clear()

    async def _watch(self) -> None:
        deaths: list[float] = []
        was_up = False
        while True:
            process = await self._spawn()
            cause = await self._until_healthy(process)
            if cause and process.returncode == _MENDABLE and not was_up:
                # It would say the same again. Later on, a restart may help: files were there.
                self._give_up(UsageError(self._last_words() or f"{self.name} {cause}"))
                return
            if not cause:
                was_up = True
                self._up.set()
                await process.wait()
                self._up.clear()
                cause = f"ended with code {process.returncode}"
            _kill_group(process.pid, signal.SIGKILL)
            await process.wait()
            _log.warning("%s %s; see %s", self.name, cause, self.log)
            self.on_death(self.name, cause)
            now = time.monotonic()
            deaths = [t for t in deaths if now - t < self.death_window_s] + [now]
            if len(deaths) >= self.max_deaths:
                text = (
                    f"{self.name} died {len(deaths)} times within {self.death_window_s:.0f} s "
                    f"(last: {cause}); its output is in {self.log}"
                )
                self._give_up(ServiceError(text))
                return
            self.restarts += 1
            await asyncio.sleep(min(0.1 * 2 ** len(deaths), 5.0))

    def _give_up(self, failure: InsituError) -> None:
        self._failure = failure
        self._end.set()

    def _last_words(self) -> str:
        """The last line that the running process wrote."""
        with self.log.open("rb") as log:
            log.seek(self._said)
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._said = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        return self._process

    async def _until_healthy(self, process: asyncio.subprocess.Process) -> str:
        """Empty when it became healthy, else what went wrong."""
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if process.returncode is not None:
                return f"ended with code {process.returncode} while starting"
            try:
                if await self.healthy():
                    return ""
            except BoundaryError:
                pass  # not listening yet
            await asyncio.sleep(0.05)
        return f"did not answer within {self.start_timeout_s:.0f} s"


def _kill_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
