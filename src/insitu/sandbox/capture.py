"""Reading a command's output: kept up to a limit, drained beyond it, never blocking the loop."""

import asyncio
import os

_CHUNK = 65_536
_PAUSE_S = 0.005
"""Rest between two reads once output is only thrown away, so that endless output costs little."""
_AFTER_END = 1 << 20


class Capture:
    """Standard output and error of one command through two pipes, with one common limit."""

    def __init__(self, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = limit
        self._kept: tuple[list[bytes], list[bytes]] = ([], [])
        self._ends: list[int] = []
        self.truncated = False
        self.writers: list[int] = []
        """Descriptors for the command; `started` closes them here."""
        for which in (0, 1):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            self._ends.append(reader)
            self.writers.append(writer)
            self._loop.add_reader(reader, self._read, which)
        self._open = {0, 1}

    def started(self) -> None:
        """The command has the writers (or never will): let go of them here."""
        for fd in self.writers:
            os.close(fd)
        self.writers = []

    def finish(self) -> tuple[bytes, bytes]:
        """What was kept. Takes what is in the pipes now and waits for nothing more."""
        self.started()
        for which in tuple(self._open):
            taken = 0
            while which in self._open and taken < _AFTER_END:
                got = self._take(which)
                if got == 0:
                    break
                taken += got
            self._stop(which)
        for fd in self._ends:
            os.close(fd)
        self._ends = []
        return b"".join(self._kept[0]), b"".join(self._kept[1])

    def _read(self, which: int) -> None:
        self._take(which)
        if self.truncated and which in self._open:
            self._loop.remove_reader(self._ends[which])
            self._loop.call_later(_PAUSE_S, self._resume, which)

    def _resume(self, which: int) -> None:
        if which in self._open:
            self._loop.add_reader(self._ends[which], self._read, which)

    def _take(self, which: int) -> int:
        """Read once; bytes taken, 0 at the end of the stream or where nothing is there."""
        try:
            data = os.read(self._ends[which], _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._stop(which)
            return 0
        kept = data[: self._left]
        self._left -= len(kept)
        self.truncated |= len(kept) < len(data)
        if kept:
            self._kept[which].append(kept)
        return len(data)

    def _stop(self, which: int) -> None:
        if which in self._open:
            self._open.discard(which)
            self._loop.remove_reader(self._ends[which])
