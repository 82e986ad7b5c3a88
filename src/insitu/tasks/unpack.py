"""Archives and folders from strangers, copied so that nothing lands outside and nothing leaks."""

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from insitu.types import TaskError

MAX_FILES = 20_000
MAX_FILE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20

_DROPPED_NAMES = {
    "__pycache__",
    ".git",
    ".hg",
    ".svn",
    ".tox",
    ".nox",
    ".eggs",
    ".venv",
    "venv",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "node_modules",
}
_DROPPED_AT_TOP = {"build", "dist"}
_DROPPED_SUFFIXES = (
    ".pyc",
    ".pyo",
    ".egg-info",
    ".dist-info",
    ".egg",
    ".whl",
    ".orig",
    ".rej",
    ".bak",
    ".swp",
)


def is_dropped(parts: tuple[str, ...]) -> bool:
    """Whether a path, relative to the tree's top, may hold a copy of the code or is a cache.

    Example: `("pkg", "__pycache__", "a.pyc")` and `("build", "lib", "pkg.py")` are.
    """
    if not parts:
        return False
    return (
        parts[0] in _DROPPED_AT_TOP
        or any(p in _DROPPED_NAMES for p in parts)
        or any(p.endswith(_DROPPED_SUFFIXES) for p in parts)
    )


@dataclass(frozen=True, slots=True)
class _Member:
    path: PurePosixPath
    size: int
    mtime: float
    open: Callable[[], Any]


def unpack(archive: Path, target: Path) -> None:
    """Unpack a `.tar.*`, `.zip` or `.whl` into the empty folder `target`.

    One common top folder is left out. Links and devices are left out; what `is_dropped` stays
    out too. File times are kept, everything else of the archive's metadata is not.

    Raises:
        TaskError: not an archive, damaged, a path that leads outside, or too large.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as z:
                _write_all(_zip_members(z), target, archive.name)
        else:
            with tarfile.open(archive) as t:
                _write_all(_tar_members(t), target, archive.name)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TaskError(
            f"{archive.name} is not a readable archive ({error})", remedy="download it again"
        ) from error


def copy_tree(folder: Path, target: Path) -> None:
    """Copy a source folder into the empty folder `target`, with the same rules as `unpack`.

    Raises:
        TaskError: the folder is too large.
    """
    members = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not is_dropped(relative.parts) and path.is_file() and not path.is_symlink():
            info = path.stat()
            place = PurePosixPath(relative.as_posix())
            members.append(_Member(place, info.st_size, info.st_mtime, partial(path.open, "rb")))
    _write_all(members, target, folder.name, strip=0)


def _tar_members(archive: tarfile.TarFile) -> list[_Member]:
    return [
        _Member(PurePosixPath(m.name), m.size, m.mtime, partial(archive.extractfile, m))
        for m in archive.getmembers()
        if m.isfile()
    ]


def _zip_members(archive: zipfile.ZipFile) -> list[_Member]:
    return [
        _Member(PurePosixPath(m.filename), m.file_size, _zip_time(m), partial(archive.open, m))
        for m in archive.infolist()
        if not m.is_dir() and stat.S_IFMT(m.external_attr >> 16) in (0, stat.S_IFREG)
    ]


def _zip_time(member: zipfile.ZipInfo) -> float:
    return datetime(*member.date_time, tzinfo=UTC).timestamp()


def _write_all(
    members: list[_Member], target: Path, name: str, *, strip: int | None = None
) -> None:
    if strip is None:
        tops = {m.path.parts[0] for m in members if m.path.parts}
        strip = int(len(tops) == 1 and all(len(m.path.parts) > 1 for m in members))
    total = 0
    for count, member in enumerate(members):
        total += member.size
        if count >= MAX_FILES or member.size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES:
            raise TaskError(
                f"{name} is too large at {member.path} ({MAX_FILES} files, "
                f"{MAX_FILE_BYTES >> 20} MB each, {MAX_TOTAL_BYTES >> 20} MB in all)",
                remedy="give a folder with the package and its tests only",
            )
        if member.path.is_absolute() or ".." in member.path.parts or "\\" in str(member.path):
            raise TaskError(f"{name} holds a path that leads outside: {member.path}")
        parts = member.path.parts[strip:]
        if parts and not is_dropped(parts):
            _write(member, target.joinpath(*parts))


def _write(member: _Member, place: Path) -> None:
    source = member.open()
    if source is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with source, place.open("wb") as sink:
        while chunk := source.read(1 << 20):
            if sink.tell() + len(chunk) > MAX_FILE_BYTES:
                raise TaskError(f"{member.path} is larger than its archive says")
            sink.write(chunk)
    os.utime(place, (member.mtime, member.mtime))
