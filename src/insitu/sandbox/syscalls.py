"""The Linux calls that Python's `os` lacks, as thin functions that raise `OSError`.

Used by the launcher (mounts, namespaces, privileges) and by the host-side file access
(`openat2`). Numbers are those of x86-64 and AArch64; calls added since Linux 5.2 have the
same number on both.
"""

import ctypes
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_IDMAP = 0x00100000

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_OPENAT2, _NR_MOUNT_SETATTR = 428, 429, 437, 442
_NR_PIVOT_ROOT = 41 if platform.machine() == "aarch64" else 155
_NR_CLOSE_RANGE, _CLOSE_RANGE_CLOEXEC = 436, 4
_NR_CAPSET = 91 if platform.machine() == "aarch64" else 126

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 4, 24, 38, 22
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(what: str, number: int, *args: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *args), what)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, flags: int = 0) -> None:
    """Join a namespace (`fd` of one) or several of a process (`fd` is a pidfd)."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """`mount(2)`."""
    _check(
        _libc.mount(
            source.encode(),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            os.fsencode(data) if data else None,
        ),
        f"mount {kind or 'bind'} on {target}",
    )


def detach(target: str) -> None:
    """Take a mount and all below it out of this namespace, at once."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """`pivot_root(2)`."""
    _syscall("pivot_root", _NR_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old))


def open_tree(path: str) -> int:
    """A detached recursive copy of the mounts at `path`, as a file descriptor."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return _syscall(
        f"open_tree {path}",
        _NR_OPEN_TREE,
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(flags),
    )


def mount_setattr(tree: int, attributes: int, userns: int = 0, *, recursive: bool = True) -> None:
    """Set attributes of a detached tree; with `MOUNT_ATTR_IDMAP` map ids by `userns`."""
    block = struct.pack("QQQQ", attributes, 0, 0, userns)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _syscall(
        "mount_setattr",
        _NR_MOUNT_SETATTR,
        ctypes.c_int(tree),
        b"",
        ctypes.c_uint(flags),
        block,
        ctypes.c_size_t(len(block)),
    )


def move_mount(tree: int, target: str) -> None:
    """Attach a detached tree at `target`."""
    _syscall(
        f"move_mount {target}",
        _NR_MOVE_MOUNT,
        ctypes.c_int(tree),
        b"",
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )


def openat2(folder: int, path: str, flags: int, *, resolve: int, mode: int = 0) -> int:
    """Open `path` below the folder `folder` under the rules `resolve`; close-on-exec."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    while True:
        result: int = _libc.syscall(
            ctypes.c_long(_NR_OPENAT2),
            ctypes.c_int(folder),
            os.fsencode(path),
            how,
            ctypes.c_size_t(len(how)),
        )
        code = ctypes.get_errno()
        if result >= 0:
            return result
        if code not in (4, 11):  # EINTR; EAGAIN: a rename raced with the walk.
            raise OSError(code, os.strerror(code), path)


def close_from(first: int, *, at_execve: bool = False) -> None:
    """Close every file descriptor from `first` on, now or when another program is started."""
    _syscall(
        "close_range",
        _NR_CLOSE_RANGE,
        ctypes.c_uint(first),
        ctypes.c_uint(0xFFFFFFFF),
        ctypes.c_uint(_CLOSE_RANGE_CLOEXEC if at_execve else 0),
    )


def _prctl(what: str, *args: object) -> None:
    padded = [*args, *([ctypes.c_ulong(0)] * (5 - len(args)))]
    _check(_libc.prctl(*padded), what)


def set_dumpable(on: bool) -> None:
    """Whether processes of the same user may trace this one or look into its `/proc` entry."""
    _prctl("prctl dumpable", ctypes.c_int(_PR_SET_DUMPABLE), ctypes.c_ulong(on))


def clear_capabilities() -> None:
    """Empty the ambient, effective, permitted and inheritable sets."""
    _prctl(
        "clear ambient", ctypes.c_int(_PR_CAP_AMBIENT), ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL)
    )
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _syscall("capset", _NR_CAPSET, header, bytes(24))


def drop_bounding(last: int) -> None:
    """Drop the capabilities 0 to `last` from the bounding set."""
    for capability in range(last + 1):
        _prctl("drop", ctypes.c_int(_PR_CAPBSET_DROP), ctypes.c_ulong(capability))


def no_new_privileges() -> None:
    """No execve gains anything from now on, in this process and its children."""
    _prctl("no_new_privs", ctypes.c_int(_PR_SET_NO_NEW_PRIVS), ctypes.c_ulong(1))


class FilterProgram:
    """A seccomp filter ready to be installed: `struct sock_fprog` and what it points to."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        self._head = ctypes.create_string_buffer(
            struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._code))
        )

    def install(self) -> None:
        """Filter this process and all its children from now on; it cannot be taken off."""
        _prctl(
            "seccomp",
            ctypes.c_int(_PR_SET_SECCOMP),
            ctypes.c_ulong(_SECCOMP_MODE_FILTER),
            ctypes.c_void_p(ctypes.addressof(self._head)),
        )
