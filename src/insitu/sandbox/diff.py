"""What a sandbox changed: a walk over the overlay's upper, compared with the layers below.

The upper holds whole files that were written, character devices 0:0 where something was
deleted, and a mark on folders that hide what is below them. Only regular files and symbolic
links become changes: FIFOs, sockets and devices do not, nor what breaks a cap (each is
named in `Diff.skipped`). A file that was touched but holds what it held is no change.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from insitu.sandbox import guard
from insitu.types import Change, ChangeKind

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """How much of a workspace may come out of a sandbox."""

    file_bytes: int = 4 << 20
    total_bytes: int = 32 << 20
    files: int = 10_000
    depth: int = 64


@dataclass(kw_only=True)
class Diff:
    """The changes, and what was left out with the reason."""

    changes: list[Change] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_diff(upper: int, layers: Sequence[str], caps: Caps | None = None) -> Diff:
    """Walk the folder `upper` (a descriptor) against host folders `layers`, first lowest."""
    walk = _Walk(tuple(Path(p) for p in reversed(layers)), caps or Caps())
    walk.folder(upper, "", depth=0, hidden=False)
    walk.diff.changes.sort(key=lambda c: c.path)
    walk.diff.skipped.sort()
    return walk.diff


class _Walk:
    def __init__(self, layers: tuple[Path, ...], caps: Caps) -> None:
        self.diff = Diff()
        self._layers = layers
        self._caps = caps
        self._bytes = 0

    def folder(self, fd: int, prefix: str, *, depth: int, hidden: bool) -> None:
        """One folder of the upper; `hidden`: nothing below the upper shows through here."""
        names = os.listdir(fd)
        for name in names:
            path = prefix + name
            if len(self.diff.changes) + len(self.diff.skipped) >= self._caps.files:
                self._skip(prefix or ".", f"more than {self._caps.files} changes")
                return
            if not _is_text(name):
                self._skip(repr(path), "its name is not UTF-8")
            else:
                self._entry(fd, name, path, depth, hidden)
        if hidden:
            self._gone_below(prefix, set(names))

    def _entry(self, fd: int, name: str, path: str, depth: int, hidden: bool) -> None:
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        kind = info.st_mode
        below = self._below(path)
        if stat.S_ISCHR(kind) and info.st_rdev == 0:
            self._deleted(path)
        elif stat.S_ISDIR(kind):
            self._subfolder(fd, name, path, depth, hidden, below)
        elif stat.S_ISLNK(kind):
            self._replaces_folder(path, below)
            self._link(os.readlink(name, dir_fd=fd), path, below)
        elif stat.S_ISREG(kind):
            self._replaces_folder(path, below)
            self._file(fd, name, path, info, below)
        else:
            self._skip(path, "not a regular file, link or folder")

    def _subfolder(
        self, fd: int, name: str, path: str, depth: int, hidden: bool, below: Path | None
    ) -> None:
        if below is not None and (below.is_symlink() or not below.is_dir()):
            self.diff.changes.append(Change(path=path, kind=ChangeKind.DELETED))
        if depth >= self._caps.depth:
            self._skip(path, f"more than {self._caps.depth} folders deep")
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            inner = os.open(name, flags, dir_fd=fd)
        except OSError as e:
            self._skip(path, f"cannot be opened: {e.strerror}")
            return
        try:
            opaque = hidden or _is_opaque(inner)
            self.folder(inner, f"{path}/", depth=depth + 1, hidden=opaque)
        except OSError as e:
            self._skip(path, f"cannot be read: {e.strerror}")
        finally:
            os.close(inner)

    def _link(self, target: str, path: str, below: Path | None) -> None:
        if not _is_text(target):
            self._skip(path, "its target is not UTF-8")
            return
        if below is not None and below.is_symlink() and os.fspath(below.readlink()) == target:
            return
        self._add(path, below, symlink=target, mode=0o777)

    def _file(
        self, fd: int, name: str, path: str, info: os.stat_result, below: Path | None
    ) -> None:
        if info.st_size > self._caps.file_bytes:
            self._skip(path, f"larger than {self._caps.file_bytes} bytes")
            return
        if self._bytes + info.st_size > self._caps.total_bytes:
            self._skip(path, f"all changes together exceed {self._caps.total_bytes} bytes")
            return
        try:
            content = guard.read_regular(fd, name, self._caps.file_bytes + 1)
        except FileNotFoundError:
            self._skip(path, "cannot be opened")
            return
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if below is not None and _same_file(below, content, mode):
            return
        self._bytes += len(content)
        self._add(path, below, content=content, mode=mode)

    def _add(
        self, path: str, below: Path | None, *, mode: int, content: bytes = b"",
        symlink: str | None = None,
    ) -> None:  # fmt: skip
        was = below is not None and (below.is_symlink() or not below.is_dir())
        kind = ChangeKind.MODIFIED if was else ChangeKind.ADDED
        self.diff.changes.append(
            Change(path=path, kind=kind, content=content, mode=mode, symlink=symlink)
        )

    def _replaces_folder(self, path: str, below: Path | None) -> None:
        if below is not None and below.is_dir() and not below.is_symlink():
            self._deleted(path)

    def _deleted(self, path: str) -> None:
        """Every file and link that the layers have at or below `path` is gone."""
        for gone in sorted(self._files_below(path)):
            self.diff.changes.append(Change(path=gone, kind=ChangeKind.DELETED))

    def _gone_below(self, prefix: str, present: set[str]) -> None:
        names = {n for n in self._names_below(prefix.rstrip("/")) if n not in present}
        for name in names:
            self._deleted(prefix + name)

    def _below(self, path: str) -> Path | None:
        """What the layers show at `path`: the topmost that has it, links not followed."""
        for layer in self._layers:
            candidate = layer / path
            if candidate.is_symlink() or candidate.exists():
                return candidate
        return None

    def _names_below(self, path: str) -> set[str]:
        names: set[str] = set()
        for layer in self._layers:
            candidate = layer / path
            if candidate.is_symlink() or not candidate.is_dir():
                if candidate.is_symlink() or candidate.exists():
                    break
                continue
            names.update(p.name for p in candidate.iterdir())
        return names

    def _files_below(self, path: str) -> Iterator[str]:
        below = self._below(path)
        if below is None:
            return
        if below.is_symlink() or not below.is_dir():
            yield path
            return
        for name in self._names_below(path):
            yield from self._files_below(f"{path}/{name}")

    def _skip(self, path: str, reason: str) -> None:
        self.diff.skipped.append(f"{path[:200]}: {reason}")


def _same_file(below: Path, content: bytes, mode: int) -> bool:
    if below.is_symlink() or not below.is_file():
        return False
    info = below.stat()
    if info.st_size != len(content) or stat.S_IMODE(info.st_mode) & 0o777 != mode:
        return False
    return below.read_bytes() == content


def _is_opaque(fd: int) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(fd, name) == b"y":
                return True
        except OSError:
            continue
    return False


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def apply_changes(root: int, changes: Sequence[Change], owner: int | None) -> None:
    """Carry changes into the folder `root` (a descriptor): deletions first, then the rest.

    Raises:
        SandboxError: a path leads outside.
        ConflictError: the changes do not fit onto what is there.
    """
    for change in changes:
        guard.check_relative(change.path)
    for change in changes:
        if change.kind is ChangeKind.DELETED:
            guard.remove_file(root, change.path)
    for change in changes:
        if change.kind is ChangeKind.DELETED:
            continue
        if change.symlink is not None:
            guard.put_link(root, change.path, change.symlink, owner)
        else:
            guard.put_file(root, change.path, change.content, change.mode, owner)
