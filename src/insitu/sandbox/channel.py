"""The owner's end of the launcher: starts its process, sends requests, matches answers."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import insitu
from insitu.sandbox.launcher import MAX_FDS, MESSAGE
from insitu.types import SandboxError

START_S = 30.0
_BUSY_S = 0.002


class Answer:
    """What the launcher answered: its JSON and the descriptors it sent along."""

    def __init__(self, body: dict[str, Any], fds: list[int]) -> None:
        self.body = body
        self.fds = fds


class Channel:
    """One running launcher process, used from one event loop."""

    def __init__(self, ours: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        self._socket = ours
        self._process = process
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._next = 0
        self.loop = asyncio.get_running_loop()
        self.alive = True
        ours.setblocking(False)
        self.loop.add_reader(ours.fileno(), self._receive)

    @classmethod
    async def start(cls, mountpoint: Path, bwrap: Path, *, use_seccomp: bool) -> "Channel":
        """Start a launcher and wait until it stands in its own namespaces.

        Raises:
            SandboxError: the kernel refuses; the text is the kernel's.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, MESSAGE)
        process = await asyncio.to_thread(
            _spawn, theirs.fileno(), str(mountpoint), str(bwrap), use_seccomp
        )
        theirs.close()
        channel = cls(ours, process)
        hello: asyncio.Future[Answer] = channel.loop.create_future()
        channel._waiting[0] = hello
        try:
            await asyncio.wait_for(hello, START_S)
        except (TimeoutError, SandboxError) as e:
            channel.close()
            raise SandboxError(f"the sandbox launcher did not start: {e}") from e
        return channel

    async def call(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Answer:
        """Send one request and wait for its answer; the caller keeps `fds`.

        Raises:
            SandboxError: the launcher is gone or answered with an error.
        """
        return await (await self.send(request, fds))

    async def send(
        self, request: dict[str, Any], fds: Sequence[int] = ()
    ) -> "asyncio.Future[Answer]":
        """Send one request; the future is its answer.

        Raises:
            SandboxError: the launcher is gone, or the request is too long.
        """
        self._next += 1
        data = json.dumps({**request, "n": self._next}).encode()
        if len(data) > MESSAGE // 2:
            raise SandboxError(f"command and environment are too long: {len(data)} bytes")
        if not self.alive:
            raise SandboxError("the sandbox launcher is gone")
        future: asyncio.Future[Answer] = self.loop.create_future()
        number = self._next
        self._waiting[number] = future
        while self.alive:
            try:
                socket.send_fds(self._socket, [data], list(fds))
            except BlockingIOError:  # many requests at once: it is busy with earlier ones
                await asyncio.sleep(_BUSY_S)
            except OSError as e:
                self._waiting.pop(number, None)
                raise SandboxError(f"the sandbox launcher does not take requests: {e}") from e
            else:
                break
        return future

    def _receive(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE, MAX_FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.close()
                return
            self._deliver(json.loads(data), fds)

    def _deliver(self, body: dict[str, Any], fds: list[int]) -> None:
        future = self._waiting.pop(body["n"], None)
        if future is None or future.done():
            for fd in fds:
                os.close(fd)
        elif "error" in body:
            future.set_exception(SandboxError(body["error"]))
            future.exception()  # a caller that was cancelled does not collect it
        else:
            future.set_result(Answer(body, fds))

    def close(self) -> None:
        """End the launcher and with it everything it started; waiting callers get an error."""
        if not self.alive:
            return
        self.alive = False
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxError("the sandbox launcher is gone"))
                future.exception()  # a caller that was cancelled does not collect it
        self._waiting.clear()


def _spawn(
    descriptor: int, mountpoint: str, bwrap: str, use_seccomp: bool
) -> "subprocess.Popen[bytes]":
    """The launcher's process, with an empty environment and one descriptor.

    It forks into its PID namespace and ends at once, so it can be waited for here.
    """
    source = str(Path(insitu.__file__).parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {source!r}); "
        "from insitu.sandbox.launcher import main; "
        f"main({descriptor}, {mountpoint!r}, {bwrap!r}, {use_seccomp!r})"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        pass_fds=[descriptor],
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    process.wait(timeout=START_S)
    return process
