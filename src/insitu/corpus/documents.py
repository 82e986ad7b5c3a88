"""Source files with their provenance, read from folders, archives and installed packages."""

import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from insitu.corpus.licences import permissive
from insitu.kit.digest import digest_bytes
from insitu.types import CorruptError, UsageError

_LARGEST = 400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One file of Python code.

    Example: `Document(source="networkx-3.6.1", path="networkx/utils/misc.py",
    licence="BSD-3-Clause", digest="9f0c…", text="…")`.
    """

    source: str
    """Package and version, or the folder's declared name."""
    path: str
    """Relative to the source, POSIX."""
    licence: str
    """SPDX identifier."""
    digest: str
    """Hex BLAKE2b-256 of the file's bytes."""
    text: str


def read_folder(
    folder: Path, *, source: str, licence: str, skip: Iterable[str] = ()
) -> Iterator[Document]:
    """Every `.py` file below a folder whose licence the caller declares, in order of path.

    Folders named in `skip` are left out at any depth; files that are not UTF-8 are left out.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", remedy="give a folder of code")
    left_out = {*skip, "__pycache__"}
    for file in sorted(folder.rglob("*.py")):
        path = file.relative_to(folder)
        if left_out & set(path.parts) or not file.is_file() or file.stat().st_size > _LARGEST:
            continue
        yield from _document(source, path.as_posix(), licence, file.read_bytes())


def read_archive(archive: Path) -> Iterator[Document]:
    """Every `.py` file of an sdist (`.tar.gz`) or a wheel, if its metadata names a permissive licence.

    Raises:
        CorruptError: the archive cannot be read.
    """
    source, files = _open(archive)
    licence = _licence(files)
    for path, raw in sorted(files.items()) if licence else ():
        if path.endswith(".py") and len(raw) <= _LARGEST:
            yield from _document(source, path, licence or "", raw)


def read_unlicensed(archive: Path) -> Iterator[Document]:
    """As `read_archive`, whatever the licence: for comparison, never for training.

    Raises:
        CorruptError: the archive cannot be read.
    """
    source, files = _open(archive)
    for path, raw in sorted(files.items()):
        if path.endswith(".py"):
            yield from _document(source, path, "", raw)


def read_installed(folder: Path, *, skip: Iterable[str] = ()) -> Iterator[Document]:
    """The `.py` files of the packages installed in a `site-packages` folder, by their RECORD.

    Packages without a permissive licence, or named in `skip` (`name` in lower case), are left out.
    """
    left_out = set(skip)
    for info in sorted(folder.glob("*.dist-info")):
        record, metadata = info / "RECORD", info / "METADATA"
        name = info.name.split("-")[0].lower().replace("_", "-")
        if name in left_out or not record.is_file() or not metadata.is_file():
            continue
        licence = permissive(metadata.read_text(errors="replace"))
        if licence is None:
            continue
        for line in record.read_text().splitlines():
            path = line.split(",")[0]
            file = folder / path
            if not path.endswith(".py") or path.startswith("..") or not file.is_file():
                continue
            if file.stat().st_size <= _LARGEST:
                source = info.name.removesuffix(".dist-info")
                yield from _document(source, path, licence, file.read_bytes())


def _open(archive: Path) -> tuple[str, dict[str, bytes]]:
    """Package and version, and the files that `_members` gives."""
    try:
        files = dict(_members(archive))
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as e:
        cause = str(e).splitlines()[0]
        raise CorruptError(f"{archive}: {cause}", remedy="download it again") from e
    if archive.suffix == ".whl":
        return "-".join(archive.name.split("-")[:2]), files
    return archive.name.removesuffix(".tar.gz"), files


def _document(source: str, path: str, licence: str, raw: bytes) -> Iterator[Document]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return
    text = text.replace("\r\n", "\n")
    yield Document(source=source, path=path, licence=licence, digest=digest_bytes(raw), text=text)


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path without the sdist's top folder, and content, of code and metadata."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith((".py", "/METADATA")):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            parts = PurePosixPath(member.name).parts[1:]
            content = sdist.extractfile(member) if member.isfile() else None
            if content and parts and parts[-1].endswith((".py", "PKG-INFO")):
                yield "/".join(parts), content.read()


def _licence(files: dict[str, bytes]) -> str | None:
    names = sorted((n for n in files if n.endswith(("METADATA", "PKG-INFO"))), key=len)
    return permissive(files[names[0]].decode(errors="replace")) if names else None
