"""Starting a command in a live sandbox: the launcher's child joins it and lets go of all else.

Every command takes this way: cgroups, namespaces, user, capabilities, no_new_privs,
seccomp, limits, in this order, and only then `execve`. The child cannot be traced or looked
into by processes of the sandbox before that (it is not dumpable, and its descriptors are
closed before it takes the sandbox's user).
"""

import os
import resource
import signal
from typing import Any

from insitu.sandbox import syscalls as sys_
from insitu.sandbox.assemble import Box
from insitu.sandbox.skeleton import BOX_UID

_JOINED = (
    sys_.CLONE_NEWNS
    | sys_.CLONE_NEWNET
    | sys_.CLONE_NEWIPC
    | sys_.CLONE_NEWUTS
    | sys_.CLONE_NEWCGROUP
)
NOT_STARTED = 127


class Home:
    """The launcher's own namespaces, to come back to."""

    def __init__(self) -> None:
        self.pid = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def start_command(
    box: Box,
    home: Home,
    request: dict[str, Any],
    stdio: tuple[int, int, int],
    joins: list[int],
    program: sys_.FilterProgram,
    last_capability: int,
) -> tuple[int, int]:
    """Fork a command into the sandbox.

    The child is born in the sandbox's PID namespace and joins the others itself.

    Returns: process id, and a descriptor on which a system fault is told (empty if none).
    """
    told_read, told_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    userns = os.open(f"/proc/{box.init}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        sys_.setns(box.pidfd, sys_.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                keep = (told_write, userns)
                _become_command(box, request, stdio, joins, keep, program, last_capability)
        finally:
            sys_.setns(home.pid, sys_.CLONE_NEWPID)
    except OSError:
        os.close(told_read)
        raise
    finally:
        os.close(told_write)
        os.close(userns)
    return pid, told_read


def _become_command(
    box: Box,
    request: dict[str, Any],
    stdio: tuple[int, int, int],
    joins: list[int],
    keep: tuple[int, int],
    program: sys_.FilterProgram,
    last: int,
) -> None:
    told, userns = keep
    try:
        for fd in joins:
            os.write(fd, b"0")
        os.setsid()
        sys_.setns(box.pidfd, _JOINED)
        _place_descriptors(stdio, told, userns)
        told, userns = 3, 4
        _set_limits(request["limits"], in_cgroup=bool(joins))
        if os.getuid() == 0:
            os.setgroups([])
        sys_.setns(userns, sys_.CLONE_NEWUSER)
        os.close(userns)
        sys_.drop_bounding(last)
        os.setresgid(BOX_UID, BOX_UID, BOX_UID)
        os.setresuid(BOX_UID, BOX_UID, BOX_UID)
        sys_.clear_capabilities()
        sys_.set_dumpable(False)
        sys_.no_new_privileges()
        _reset_signals()
        os.umask(0o022)
        if box.seccomp:
            program.install()
        _execute(request)
    except BaseException as e:  # noqa: BLE001 - a forked child must not run its parent's code.
        os.write(told, f"{type(e).__name__}: {e}".encode()[:2000])
    os._exit(NOT_STARTED)


def _place_descriptors(stdio: tuple[int, int, int], told: int, userns: int) -> None:
    """Make stdio 0, 1, 2, the fault pipe 3, the user namespace 4; close all others."""
    high = [os.dup(fd) for fd in (*stdio, told, userns)]
    high = [fd if fd > 4 else os.dup(fd) for fd in high]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=number < 3)
    sys_.close_from(5)


def _set_limits(limits: dict[str, Any], *, in_cgroup: bool) -> None:
    _limit(resource.RLIMIT_NOFILE, int(limits["open_files"]))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 1 << 16)
    _limit(resource.RLIMIT_MSGQUEUE, 1 << 16)
    _limit(resource.RLIMIT_SIGPENDING, 1024)
    if not in_cgroup:
        _limit(resource.RLIMIT_DATA, int(limits["memory_mb"]) << 20)
    _limit(resource.RLIMIT_NPROC, int(limits["pids"]))


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _reset_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _execute(request: dict[str, Any]) -> None:
    argv = request["argv"]
    try:
        os.chdir(request["cwd"])
        os.execvpe(argv[0], argv, request["env"])  # noqa: S606
    except (OSError, ValueError) as e:
        what = request["cwd"] if getattr(e, "filename", None) == request["cwd"] else argv[0]
        os.write(2, f"{what}: {getattr(e, 'strerror', None) or e}\n".encode(errors="replace"))
        os._exit(126 if isinstance(e, PermissionError) else NOT_STARTED)
