"""File access into a tree that hostile code may be changing: nothing here follows a way out.

Folders are file descriptors, paths are resolved by the kernel inside them (`openat2`), files
are opened without blocking and checked to be regular before a byte is read.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from insitu.sandbox import syscalls as sys_
from insitu.types import SandboxError

_INSIDE = sys_.RESOLVE_IN_ROOT | sys_.RESOLVE_NO_MAGICLINKS
_STRICT = sys_.RESOLVE_BENEATH | sys_.RESOLVE_NO_SYMLINKS | sys_.RESOLVE_NO_MAGICLINKS


class ConflictError(SandboxError):
    """Changes cannot be carried over: a folder stands where a file should go, no space, …"""


def check_relative(path: str) -> None:
    """Refuse absolute paths and paths with `..`, empty parts or NUL.

    Raises:
        SandboxError: the path is one of these.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise SandboxError(f"not a path inside the workspace: {path!r}")


def read_regular(root: int, path: str, max_bytes: int) -> bytes:
    """The first `max_bytes` bytes of a regular file; links are followed inside `root` only.

    Raises:
        FileNotFoundError: there is no such regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = sys_.openat2(root, path, flags, resolve=_INSIDE)
    except OSError as e:
        raise FileNotFoundError(e.errno, "no regular file in the sandbox", path) from e
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileNotFoundError(2, "not a regular file", path)
        return read_all(fd, max_bytes)
    finally:
        os.close(fd)


def read_all(fd: int, max_bytes: int) -> bytes:
    """Up to `max_bytes` bytes from an open file."""
    parts, left = [], max_bytes
    while left > 0 and (part := os.read(fd, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def open_folder(root: int, path: str) -> int:
    """An `O_PATH` descriptor of a folder below `root`, no link on the way."""
    return sys_.openat2(root, path, os.O_PATH | os.O_DIRECTORY, resolve=_STRICT)


@contextmanager
def parent_folder(root: int, path: str, *, owner: int | None, make: bool) -> Iterator[int | None]:
    """The folder that holds `path`, made on the way if `make`; None where it is missing.

    Args:
        owner: user and group id that made folders get; None: the caller's own.

    Raises:
        ConflictError: a file or link stands where a folder is needed.
    """
    fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for part in path.split("/")[:-1]:
            try:
                following = _step(fd, part, owner, make=make)
            except FileNotFoundError:
                yield None
                return
            except OSError as e:
                raise ConflictError(f"{path}: {part} is in the way: {e.strerror}") from e
            os.close(fd)
            fd = following
        yield fd
    finally:
        os.close(fd)


def _step(fd: int, part: str, owner: int | None, *, make: bool) -> int:
    try:
        return sys_.openat2(fd, part, os.O_PATH | os.O_DIRECTORY, resolve=_STRICT)
    except FileNotFoundError:
        if not make:
            raise
    os.mkdir(part, 0o755, dir_fd=fd)
    if owner is not None:
        os.chown(part, owner, owner, dir_fd=fd, follow_symlinks=False)
    return sys_.openat2(fd, part, os.O_PATH | os.O_DIRECTORY, resolve=_STRICT)


def put_file(root: int, path: str, data: bytes, mode: int, owner: int | None) -> None:
    """Create or replace a regular file below `root`.

    Raises:
        ConflictError: a folder or link is in the way, or there is no space.
    """
    check_relative(path)
    name = path.rpartition("/")[2]
    with parent_folder(root, path, owner=owner, make=True) as folder:
        if folder is None:  # removed by the sandbox's processes in this moment
            raise ConflictError(f"{path}: its folder vanished")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=folder)
            try:
                _fill(fd, data, mode, owner)
            finally:
                os.close(fd)
        except OSError as e:
            raise ConflictError(f"{path}: {e.strerror}") from e


def _fill(fd: int, data: bytes, mode: int, owner: int | None) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    if owner is not None:
        os.fchown(fd, owner, owner)
    os.fchmod(fd, mode & 0o777)


def put_link(root: int, path: str, target: str, owner: int | None) -> None:
    """Create or replace a symbolic link below `root`; its target is not looked at.

    Raises:
        ConflictError: a folder is in the way.
    """
    check_relative(path)
    name = path.rpartition("/")[2]
    with parent_folder(root, path, owner=owner, make=True) as folder:
        if folder is None:
            raise ConflictError(f"{path}: its folder vanished")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.symlink(target, name, dir_fd=folder)
            if owner is not None:
                os.chown(name, owner, owner, dir_fd=folder, follow_symlinks=False)
        except OSError as e:
            raise ConflictError(f"{path}: {e.strerror}") from e


def remove_file(root: int, path: str) -> None:
    """Remove a file or link below `root`, and the folders that this leaves empty.

    Raises:
        ConflictError: it is a folder.
    """
    check_relative(path)
    current = path
    with parent_folder(root, path, owner=None, make=False) as folder:
        if folder is None:
            return
        try:
            os.unlink(path.rpartition("/")[2], dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as e:
            raise ConflictError(f"{path}: {e.strerror}") from e
    while "/" in current:
        current = current.rpartition("/")[0]
        with parent_folder(root, current, owner=None, make=False) as folder:
            if folder is None:
                return
            try:
                os.rmdir(current.rpartition("/")[2], dir_fd=folder)
            except OSError:
                return  # not empty
