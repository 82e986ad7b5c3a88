"""Putting one sandbox together inside the launcher: mounts, then bubblewrap around them."""

import json
import os
import select
import shutil
import signal
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from insitu.sandbox import skeleton
from insitu.sandbox import syscalls as sys_
from insitu.sandbox.nest import BWRAP, EMPTY, IdMaps

START_S = 20.0
"""Seconds bubblewrap may take to start."""
_BACKLOG = 64
_HOLDER = (
    "/bin/sh",
    "-c",
    # Not every shell hands an ignored SIGCHLD on, and not every `env` knows how to.
    "e='/usr/bin/env --ignore-signal=CHLD'; $e /usr/bin/true 2>/dev/null && exec $e /usr/bin/cat;"
    " trap '' CHLD; exec /usr/bin/cat",
)


@dataclass(kw_only=True)
class Box:
    """One live sandbox, as the launcher knows it. Process ids are the launcher's."""

    box_id: str
    folder: str
    uid: int
    bwrap: int
    init: int
    pidfd: int
    holder: socket.socket
    """Closing it ends the process that keeps the sandbox alive."""
    seccomp: bool = True
    fds: list[int] = field(default_factory=list)


def open_system_path(path: str) -> str:
    """The launcher's path for a host path; raises FileNotFoundError where there is none."""
    found = skeleton.resolve_on_host(path)
    os.stat(found)  # noqa: PTH116
    return found


def attach(source: str, target: str, uid: int, maps: IdMaps, *, writable_copy: bool) -> None:
    """Show the host path `source` read-only at `target`, which is made.

    As root, files that belong to the owner of `source` appear as the sandbox user's own, so
    that private files can be read and, below an overlay, changed. Where the file system knows
    no id maps (overlayfs, NFS), a layer is copied and a mount is shown as it is.
    """
    where = open_system_path(source) if source else EMPTY
    info = os.stat(where)  # noqa: PTH116
    if stat.S_ISDIR(info.st_mode):
        os.mkdir(target, 0o755)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    tree = sys_.open_tree(where)
    try:
        sys_.mount_setattr(
            tree, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
        )
        if os.getuid() == 0 and info.st_uid != uid and source:
            userns = maps.get(info.st_uid, info.st_gid, uid)
            try:
                sys_.mount_setattr(tree, sys_.MOUNT_ATTR_IDMAP, userns, recursive=False)
            except OSError:
                if writable_copy:
                    copy_layer(where, target, uid)
                    return
        sys_.move_mount(tree, target)
    finally:
        os.close(tree)


def copy_layer(source: str, target: str, uid: int) -> None:
    """A copy of the folder `source` in memory at `target`, owned by `uid`; links stay links."""
    sys_.mount("tmpfs", target, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=755")
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    os.chown(target, uid, uid)
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            os.chown(f"{folder}/{name}", uid, uid, follow_symlinks=False)


def mount_workspace(
    folder: str, layers: Sequence[str], mounts: Sequence[str], disk_mb: int, uid: int, maps: IdMaps
) -> None:
    """Mount layers, upper and their overlay (`m`), and the extra mounts (`x0`…), in `folder`.

    Layer folders that belong to another user than the sandbox's appear as the sandbox's own
    (root only). Names in the overlay's options are relative, so that the mount table seen
    inside tells nothing of the host.
    """
    os.mkdir(folder, 0o755)  # noqa: PTH102
    privileged = os.getuid() == 0
    sys_.mount(
        "workspace",
        folder,
        "tmpfs",
        sys_.MS_NOSUID | sys_.MS_NODEV,
        f"mode=755,size={disk_mb}m,nr_inodes={4096 + 256 * disk_mb}",
    )
    os.chdir(folder)
    try:
        for name in ("u", "w", "m"):
            os.mkdir(name, 0o755)  # noqa: PTH102
        os.chown("u", uid, uid if privileged else -1)
        for i, layer in enumerate(layers):
            attach(layer, str(i), uid, maps, writable_copy=True)
        for i, source in enumerate(mounts):
            attach(source, f"x{i}", uid, maps, writable_copy=False)
        lower = ":".join(str(i) for i in reversed(range(len(layers)))) or EMPTY
        extra = "redirect_dir=off,metacopy=off,index=off" if privileged else "userxattr"
        sys_.mount(
            "workspace",
            "m",
            "overlay",
            sys_.MS_NOSUID | sys_.MS_NODEV,
            f"lowerdir={lower},upperdir=u,workdir=w,{extra}",
        )
    finally:
        os.chdir("/")


def bwrap_arguments(request: dict[str, Any], folder: str, fds: dict[str, int]) -> list[str]:
    """The options of bubblewrap for one sandbox."""
    home, shared = f"/home/{request['user']}", str(request["disk_mb"] << 20)
    out = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    out += ["--unshare-cgroup-try", "--uid", str(skeleton.BOX_UID), "--gid", str(skeleton.BOX_UID)]
    out += ["--hostname", request["hostname"], "--die-with-parent", "--new-session"]
    out += ["--as-pid-1"]
    out += ["--cap-drop", "ALL", "--clearenv", "--info-fd", str(fds["info"])]
    if "seccomp" in fds:
        out += ["--seccomp", str(fds["seccomp"])]
    out += skeleton.system_binds()
    out += ["--ro-bind", skeleton.etc_folder(request["user"], request["hostname"], home), "/etc"]
    out += ["--proc", "/proc", "--dev", "/dev", "--size", shared, "--tmpfs", "/dev/shm"]  # noqa: S108 - inside the sandbox
    out += ["--perms", "1777", "--size", shared, "--tmpfs", "/tmp"]  # noqa: S108
    out += ["--perms", "0755", "--size", shared, "--tmpfs", home, "--dir", "/run", "--dir", "/var"]
    out += ["--symlink", "/tmp", "/var/tmp", "--size", shared, "--tmpfs", "/logs"]  # noqa: S108
    for i, (_, target) in enumerate(request["mounts"]):
        out += ["--ro-bind", f"{folder}/x{i}", target]
    out += ["--bind", f"{folder}/m", request["workdir"], "--remount-ro", "/", "--chdir", "/"]
    return out


def start_bwrap(
    request: dict[str, Any], folder: str, uid: int, filter_code: bytes, joins: Sequence[int]
) -> Box:
    """Start bubblewrap as the user `uid` and wait until the sandbox stands.

    The process inside is `cat`: it echoes one byte when everything is mounted and then
    keeps the namespaces until the other end of its pipe is closed. It is the sandbox's process 1,
    so that nothing inside can kill it, and ignores SIGCHLD, so that the kernel reaps orphans.

    Raises:
        OSError: bubblewrap failed; its own words are in the text.
    """
    ours, theirs = socket.socketpair()
    errors, info = os.memfd_create("errors", 0), os.memfd_create("info", 0)
    passed = {"info": info}
    if filter_code:
        passed["seccomp"] = _memory(filter_code)
    arguments = bwrap_arguments(request, folder, passed)
    passed["args"] = _memory(b"".join(a.encode() + b"\0" for a in arguments))
    last = skeleton.last_capability()
    ours.send(b".")
    pid = os.fork()
    if pid == 0:
        _become_bwrap(uid, joins, theirs.fileno(), errors, passed, last)
    theirs.close()
    try:
        if not _echoed(ours):
            raise OSError(os.pread(errors, 300, 0).decode(errors="replace") or "no answer")
        init = int(json.loads(os.pread(info, 4000, 0))["child-pid"])
        pidfd = os.pidfd_open(init)
        return Box(
            box_id=request["id"], folder=folder, uid=uid, bwrap=pid, init=init, pidfd=pidfd,
            holder=ours, seccomp=bool(filter_code),
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as e:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        raise OSError(f"bubblewrap did not start: {str(e).strip()}") from e
    finally:
        for fd in (errors, *passed.values()):
            os.close(fd)


def _echoed(ours: socket.socket) -> bool:
    try:
        return bool(select.select([ours], [], [], START_S)[0]) and ours.recv(1) == b"."
    except ConnectionResetError:  # it died with our byte unread
        return False


def _become_bwrap(
    uid: int, joins: Sequence[int], stdio: int, errors: int, passed: dict[str, int], last: int
) -> None:
    """In the child: join the cgroups, become nobody, start bubblewrap. Never returns."""
    try:
        for fd in joins:
            os.write(fd, b"0")
        os.dup2(stdio, 0)
        os.dup2(stdio, 1)
        os.dup2(errors, 2)
        sys_.close_from(3, at_execve=True)
        for fd in passed.values():  # bubblewrap closes these itself
            os.set_inheritable(fd, True)
        os.setsid()
        sys_.drop_bounding(last)
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        sys_.clear_capabilities()
        sys_.no_new_privileges()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execve(BWRAP, ["init", "--args", str(passed["args"]), "--", *_HOLDER], {})  # noqa: S606
    except BaseException as e:  # noqa: BLE001 - a forked child must not run its parent's code.
        os.write(2, f"cannot start {BWRAP}: {e}".encode())
    os._exit(127)


def listen_inside(box: Box, port: int, own_net: int) -> int:
    """A socket that listens on 127.0.0.1:`port` in the sandbox's network namespace."""
    sys_.setns(box.pidfd, sys_.CLONE_NEWNET)
    try:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            s.listen(_BACKLOG)
            return s.detach()
    finally:
        sys_.setns(own_net, sys_.CLONE_NEWNET)


def open_views(box: Box) -> list[int]:
    """File descriptors of the sandbox's root as seen inside, and of the overlay's upper."""
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    root = os.open(f"/proc/{box.init}/root", os.O_PATH | flags)
    return [root, os.open(f"{box.folder}/u", os.O_RDONLY | flags)]


def take_apart(folder: str) -> None:
    """Drop the mounts of one sandbox and its folder."""
    for _ in range(2):
        try:
            sys_.detach(folder)
        except OSError:
            break
    if os.path.isdir(folder):  # noqa: PTH112
        os.rmdir(folder)  # noqa: PTH106


def _memory(data: bytes) -> int:
    fd = os.memfd_create("insitu", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
