"""Control groups: limits that hold for all processes of a sandbox together, v1 or v2.

Groups are `insitu/<owner>/<sandbox>/<exec>`: the owner's name holds its process id and
start time, so that `reap` can tell the groups of dead owners. Limits stand on the sandbox's
group; each exec gets a group below it (v1: in the `pids` hierarchy only), so that a time-out
can kill exactly one exec's tree.

Where neither version can be used, `find_driver` gives None and the launcher falls back to
rlimits, which hold per process (memory) or per user namespace (number of processes).
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Protocol

from insitu.kit.log import get_log
from insitu.types import Limits

_log = get_log("sandbox")
_PERIOD_US = 100_000
_KILL_ROUNDS = 400
_MOUNT = Path("/sys/fs/cgroup")
_V1_NEEDED = ("memory", "pids", "cpu")
_V2_NEEDED = ("memory", "pids", "cpu")


class Driver(Protocol):
    """One version of control groups."""

    version: int

    def make(self, name: str, limits: Limits) -> "BoxGroup":
        """The group of a sandbox with its limits; raises OSError, leaving nothing."""
        ...

    def groups(self) -> list[str]:
        """Names `<owner>/<sandbox>` of all groups there are, of any owner."""
        ...

    def remove(self, name: str) -> None:
        """Kill what runs in the group `name` and remove it, with all below it."""
        ...

    def remove_owners(self) -> None:
        """Remove the empty groups of owners that no longer live."""
        ...


class BoxGroup:
    """The control groups of one sandbox; `tops` are its folders, the first tracks execs."""

    def __init__(self, tops: list[Path], memory: Path, oom_file: str) -> None:
        self._tops = tops
        self._memory = memory
        self._oom_file = oom_file
        self._count = 0
        self._joins = [os.open(p / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for p in tops]

    @property
    def joins(self) -> list[int]:
        """Descriptors that put the process that writes `0` to each into the groups."""
        return self._joins

    def begin_exec(self) -> "ExecGroup":
        """A group for one exec inside the sandbox's limits."""
        self._count += 1
        folder = self._tops[0] / f"x{self._count}"
        folder.mkdir()
        procs = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        return ExecGroup(folder, procs, self._joins[1:])

    def oom_kills(self) -> int:
        """Processes killed so far because the sandbox's memory was full."""
        with contextlib.suppress(OSError):
            for line in (self._memory / self._oom_file).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def close(self) -> None:
        """Kill what is left and remove the groups."""
        for fd in self._joins:
            os.close(fd)
        self._joins = []
        for top in self._tops:
            _remove_tree(top)


class ExecGroup:
    """The group of one exec."""

    def __init__(self, folder: Path, procs: int, others: list[int]) -> None:
        self._folder = folder
        self._procs = procs
        self.joins = [procs, *others]

    def kill(self) -> bool:
        """Kill every process in it; whether none is left."""
        return _kill_all(self._folder)

    def close(self) -> None:
        """Let go of it; what still runs there moves up to the sandbox's group at its end."""
        os.close(self._procs)
        with contextlib.suppress(OSError):  # busy: a background process of the exec lives on
            self._folder.rmdir()


class V1Driver:
    """Separate hierarchies below `/sys/fs/cgroup/<controller>`, groups at their top."""

    version = 1

    def __init__(self, mount: Path = _MOUNT) -> None:
        self._mount = mount
        self._roots = {name: mount / name / "insitu" for name in _V1_NEEDED}

    def usable(self) -> bool:
        """Whether this process may make groups here."""
        return all((r.parent / "cgroup.procs").exists() for r in self._roots.values()) and all(
            os.access(r.parent, os.W_OK) for r in self._roots.values()
        )

    def make(self, name: str, limits: Limits) -> BoxGroup:
        """See `Driver`."""
        tops = [self._roots[c] / name for c in ("pids", "memory", "cpu")]
        try:
            for top in tops:
                top.mkdir(parents=True)
            _write(tops[0] / "pids.max", limits.pids)
            _write(tops[1] / "memory.limit_in_bytes", limits.memory_mb << 20)
            swap = tops[1] / "memory.memsw.limit_in_bytes"
            if swap.exists():
                _write(swap, limits.memory_mb << 20)
            _write(tops[2] / "cpu.cfs_period_us", _PERIOD_US)
            _write(tops[2] / "cpu.cfs_quota_us", int(limits.cpus * _PERIOD_US))
            return BoxGroup(tops, tops[1], "memory.oom_control")
        except OSError:
            for top in tops:
                _remove_tree(top)
            raise

    def groups(self) -> list[str]:
        """See `Driver`."""
        return sorted({n for root in self._roots.values() for n in _two_levels(root)})

    def remove(self, name: str) -> None:
        """See `Driver`."""
        for root in self._roots.values():
            _remove_tree(root / name)
            _remove_empty((root / name).parent)

    def remove_owners(self) -> None:
        """See `Driver`."""
        for root in self._roots.values():
            _remove_dead(root)


class V2Driver:
    """The unified hierarchy: the nearest group, from our own upwards, that can hold ours."""

    version = 2

    def __init__(self, mount: Path = _MOUNT, own: str | None = None) -> None:
        self._base = _find_v2_base(mount, _own_v2_group() if own is None else own)

    def usable(self) -> bool:
        """Whether there is such a group."""
        return self._base is not None

    def make(self, name: str, limits: Limits) -> BoxGroup:
        """See `Driver`."""
        if self._base is None:
            raise OSError("no control group with memory, pids and cpu may be made here")
        top = self._base / name
        try:
            top.parent.mkdir(exist_ok=True)
            _delegate(top.parent)
            top.mkdir()
            _write(top / "pids.max", limits.pids)
            _write(top / "memory.max", limits.memory_mb << 20)
            if (top / "memory.swap.max").exists():
                _write(top / "memory.swap.max", 0)
            _write(top / "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}")
            return BoxGroup([top], top, "memory.events")
        except OSError:
            _remove_tree(top)
            raise

    def groups(self) -> list[str]:
        """See `Driver`."""
        return _two_levels(self._base) if self._base else []

    def remove(self, name: str) -> None:
        """See `Driver`."""
        if self._base:
            _remove_tree(self._base / name)
            _remove_empty((self._base / name).parent)

    def remove_owners(self) -> None:
        """See `Driver`."""
        if self._base:
            _remove_dead(self._base)


def find_driver() -> Driver | None:
    """The driver that works here, or None."""
    v2 = V2Driver()
    if v2.usable():
        return v2
    v1 = V1Driver()
    return v1 if v1.usable() else None


def owner_name(pid: int | None = None) -> str:
    """`<pid>.<start time>` of a process: a name that no later process gets.

    Raises:
        OSError: there is no such process.
    """
    pid = os.getpid() if pid is None else pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}.{fields[19]}"


def owner_lives(name: str) -> bool:
    """Whether the process that `owner_name` named still runs."""
    pid = name.partition(".")[0]
    try:
        return pid.isdigit() and owner_name(int(pid)) == name
    except OSError:
        return False


def _own_v2_group() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return "/"


def _find_v2_base(mount: Path, own: str) -> Path | None:
    if not (mount / "cgroup.controllers").exists():
        return None
    folder = mount / own.lstrip("/")
    while True:
        with contextlib.suppress(OSError):
            if _delegate(folder) and os.access(folder / "cgroup.procs", os.W_OK):
                base = folder / "insitu"
                base.mkdir(exist_ok=True)
                _delegate(base)
                return base
        if folder == mount:
            return None
        folder = folder.parent


def _delegate(folder: Path) -> bool:
    """Whether groups below `folder` get our controllers, asking for them where needed."""
    control = folder / "cgroup.subtree_control"
    missing = set(_V2_NEEDED) - set(control.read_text().split())
    if missing:
        control.write_text(" ".join(f"+{c}" for c in sorted(missing)))
    return True


def _two_levels(root: Path) -> list[str]:
    names = []
    with contextlib.suppress(OSError):
        for owner in root.iterdir():
            if owner.is_dir():
                names += [f"{owner.name}/{box.name}" for box in owner.iterdir() if box.is_dir()]
    return sorted(names)


def _remove_tree(top: Path) -> None:
    if not top.is_dir():
        return
    below = [p for p in top.iterdir() if p.is_dir()]
    for folder in [*below, top]:
        _kill_all(folder)
        for attempt in range(_KILL_ROUNDS):
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                _kill_all(folder)
                time.sleep(0.0005 * min(attempt + 1, 20))
        else:
            _log.warning("control group %s could not be removed", folder)


def _remove_dead(root: Path) -> None:
    with contextlib.suppress(OSError):
        for owner in root.iterdir():
            if owner.is_dir() and not owner_lives(owner.name):
                _remove_empty(owner)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _kill_all(folder: Path) -> bool:
    """SIGKILL to all processes of one group until it is empty; whether it is."""
    killer = folder / "cgroup.kill"
    for round_ in range(_KILL_ROUNDS):
        try:
            pids = (folder / "cgroup.procs").read_text().split()
        except OSError:
            return True
        if not pids:
            return True
        if killer.exists():
            _write(killer, 1)
        else:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.0005 * min(round_ + 1, 10))
    return False


def _write(path: Path, value: int | str) -> None:
    path.write_text(str(value))
