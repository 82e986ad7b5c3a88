"""The launcher: one small process per back-end that makes sandboxes and starts commands.

It is a process of its own because the owner may be big and threaded: forking that is slow
and unsafe. It has one thread, imports only the standard library, and talks with its owner
over one `SOCK_SEQPACKET` socket: JSON messages with file descriptors beside them. Each
request has a number `n`, which its answer repeats.

    create   → {"n", "ok"} + root, upper, one listening socket per forward
    exec     → {"n", "status", "cpu_s"} when the command has ended
    sweep    → {"n", "ok"} after all commands in a sandbox were killed
    alive    → {"n", "alive"}: whether the sandbox's first process still runs
    destroy  → {"n", "ok"} when no process and no mount of the sandbox is left

When the socket closes, it ends, and the kernel ends everything below it (see `nest`).
"""

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from insitu.sandbox import assemble, enter, nest, seccomp, skeleton
from insitu.sandbox import syscalls as sys_

MESSAGE = 1 << 18
MAX_FDS = 32
_SWEEPS = 400


@dataclass(kw_only=True)
class Running:
    """A command that has not ended yet."""

    number: int
    box_id: str
    told: int


class Launcher:
    """Serves one owner until its socket closes."""

    def __init__(self, channel: socket.socket, *, use_seccomp: bool = True) -> None:
        self._channel = channel
        self._boxes: dict[str, assemble.Box] = {}
        self._running: dict[int, Running] = {}
        self._leaving: dict[int, tuple[int, assemble.Box]] = {}
        self._dead: set[int] = set()
        """Processes of live boxes' bubblewraps that ended by themselves and were reaped."""
        self._maps = nest.IdMaps()
        self._home = enter.Home()
        self._code = seccomp.filter_program() if use_seccomp else b""
        self._program = sys_.FilterProgram(self._code)
        self._last = skeleton.last_capability()
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer requests until the owner is gone."""
        while True:
            ready, _, _ = select.select([self._channel.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._collect()
            if self._channel.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self._channel, MESSAGE, MAX_FDS)
                if not data:
                    return
                self._answer(json.loads(data), fds)

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            match request["op"]:
                case "create":
                    self._create(request, fds)
                case "exec":
                    self._exec(request, fds)
                case "sweep":
                    self._sweep(request)
                case "alive":
                    dead, _, _ = select.select([self._boxes[request["id"]].pidfd], [], [], 0)
                    self._reply({"n": request["n"], "alive": not dead})
                case "destroy":
                    self._destroy(request)
        except (OSError, ValueError, KeyError) as e:
            self._reply({"n": request["n"], "error": f"{type(e).__name__}: {e}"})
        finally:
            for fd in fds:
                os.close(fd)

    def _reply(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], fds or [])
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(0)  # the owner is gone

    def _create(self, request: dict[str, Any], joins: list[int]) -> None:
        folder, uid = f"/b/{request['id']}", int(request["uid"])
        sources = [source for source, _ in request["mounts"]]
        box: assemble.Box | None = None
        opened: list[int] = []
        try:
            assemble.mount_workspace(
                folder, request["layers"], sources, request["disk_mb"], uid, self._maps
            )
            box = assemble.start_bwrap(request, folder, uid, self._code, joins)
            opened += assemble.open_views(box)
            for port in request["forwards"]:
                opened.append(assemble.listen_inside(box, port, self._home.net))
            self._boxes[box.box_id] = box
            self._reply({"n": request["n"], "ok": True}, opened)
        except OSError:
            if box is not None:
                self._boxes.pop(box.box_id, None)
                self._kill(box)
                _close(box)
            assemble.take_apart(folder)
            raise
        finally:
            for fd in opened:
                os.close(fd)

    def _exec(self, request: dict[str, Any], fds: list[int]) -> None:
        box = self._boxes[request["id"]]
        stdio = (fds[0], fds[1], fds[2])
        pid, told = enter.start_command(
            box, self._home, request, stdio, fds[3:], self._program, self._last
        )
        self._running[pid] = Running(number=request["n"], box_id=box.box_id, told=told)

    def _destroy(self, request: dict[str, Any]) -> None:
        box = self._boxes.pop(request["id"])
        self._kill(box)
        if box.bwrap in self._dead:
            self._dead.discard(box.bwrap)
            self._finish(request["n"], box)
        else:
            self._leaving[box.bwrap] = (request["n"], box)
            self._collect()

    def _finish(self, number: int, box: assemble.Box) -> None:
        _close(box)
        assemble.take_apart(box.folder)
        self._reply({"n": number, "ok": True})

    def _kill(self, box: assemble.Box) -> None:
        try:
            signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _collect(self) -> None:
        """Reap every child that ended, and tell the owner what it waits for."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                self._ended(self._running.pop(pid), status, usage.ru_utime + usage.ru_stime)
            elif pid in self._leaving:
                self._finish(*self._leaving.pop(pid))
            elif any(box.bwrap == pid for box in self._boxes.values()):
                self._dead.add(pid)

    def _ended(self, run: Running, status: int, cpu_s: float) -> None:
        try:
            fault = os.read(run.told, 2000).decode(errors="replace")
        except BlockingIOError:
            fault = ""
        finally:
            os.close(run.told)
        if fault:
            self._reply({"n": run.number, "error": fault})
        else:
            code = os.waitstatus_to_exitcode(status)
            self._reply({"n": run.number, "status": code, "cpu_s": cpu_s})

    def _sweep(self, request: dict[str, Any]) -> None:
        """Kill everything in a sandbox but its first process."""
        box = self._boxes[request["id"]]
        for _ in range(_SWEEPS):
            victims = [pid for pid in _members(box) if pid != box.init]
            if not victims:
                break
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._collect()
            time.sleep(0.001)
        self._reply({"n": request["n"], "ok": True})


def _close(box: assemble.Box) -> None:
    os.close(box.pidfd)
    box.holder.close()


def _members(box: assemble.Box) -> list[int]:
    """Live processes in the sandbox's PID namespace."""
    try:
        wanted = os.readlink(f"/proc/{box.init}/ns/pid")  # noqa: PTH115
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as f:  # noqa: PTH123
                dead = f.read().rpartition(")")[2].split()[0] in "ZX"
            if not dead and os.readlink(f"/proc/{name}/ns/pid") == wanted:  # noqa: PTH115
                found.append(int(name))
        except OSError:
            continue
    return found


def main(descriptor: int, mountpoint: str, bwrap: str, use_seccomp: bool) -> None:
    """Entry of the launcher's process: enter the nest, say so, serve."""
    channel = socket.socket(fileno=descriptor)
    try:
        nest.enter_nest(mountpoint, bwrap)
        launcher = Launcher(channel, use_seccomp=use_seccomp)
    except OSError as e:
        channel.send(json.dumps({"n": 0, "error": str(e)}).encode())
        return
    channel.send(json.dumps({"n": 0, "ok": True}).encode())
    launcher.serve()
