"""Files of code in a folder, in any language, each refusal with its reason.

The licence is the caller's affair: this reads what a company owns or has checked. Other corpora
(`insitu.corpus.documents`) read archives by their licence.
"""

import os
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from insitu.kit.digest import digest_bytes
from insitu.types import UsageError

LANGUAGES: Final[dict[str, tuple[str, ...]]] = {
    "c": (".c", ".h"),
    "c#": (".cs",),
    "c++": (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"),
    "clojure": (".clj", ".cljs"),
    "dart": (".dart",),
    "elixir": (".ex", ".exs"),
    "erlang": (".erl", ".hrl"),
    "go": (".go",),
    "haskell": (".hs",),
    "java": (".java",),
    "javascript": (".js", ".jsx", ".mjs", ".cjs"),
    "julia": (".jl",),
    "kotlin": (".kt", ".kts"),
    "lua": (".lua",),
    "objective-c": (".m", ".mm"),
    "ocaml": (".ml", ".mli"),
    "perl": (".pl", ".pm"),
    "php": (".php",),
    "proto": (".proto",),
    "python": (".py", ".pyi"),
    "r": (".r", ".R"),
    "ruby": (".rb",),
    "rust": (".rs",),
    "scala": (".scala",),
    "shell": (".sh", ".bash"),
    "sql": (".sql",),
    "svelte": (".svelte",),
    "swift": (".swift",),
    "typescript": (".ts", ".tsx", ".mts", ".cts"),
    "vue": (".vue",),
    "zig": (".zig",),
}
"""What is read where the recipe names no suffixes."""

SKIPPED: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", ".eggs", "__pycache__"),
        *("node_modules", "bower_components", "site-packages", "vendor", "third_party"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".next", "build", "dist", "target"),
    }
)
"""Names of folders that hold copies, caches or what a build makes; left out at any depth."""

_LARGEST = 1_000_000
"""Bytes; larger files are data or generated."""
_LONGEST_LINE = 1_000
_LONGEST_MEAN = 100
_HEAD = 1_000
_GENERATED = re.compile(
    r"@generated\b|\bauto-?generated\b|\bautomatically generated\b|\bdo not edit\b", re.IGNORECASE
)
_GENERATED_NAME = re.compile(r"(_pb2(_grpc)?\.pyi?|\.pb\.(go|cc|h)|\.g\.dart|_generated\.\w+)$")
_MINIFIED_NAME = re.compile(r"[.-]min\.\w+$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFile:
    """One file worth learning from.

    Example: `CodeFile(path="pkg/core.py", language="python", text="def f(): …")`.
    """

    path: str
    """Relative to the folder, POSIX."""
    language: str
    """A key of `LANGUAGES`, or the suffix where the table lacks it."""
    text: str
    """Exactly the file's characters, except that every line ends with a line feed alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedFile:
    """A file that is left out: `generated`, `minified`, `long lines`, `not UTF-8`, `duplicate`,
    `too large`, `empty` or `unreadable`."""

    path: str
    reason: str


def list_code(folder: Path, *, suffixes: Collection[str] = ()) -> list[Path]:
    """The files of code below `folder` in order of path; links are not followed.

    In a git checkout these are the files that git does not ignore.

    Args:
        folder: where they lie.
        suffixes: of the files to read (`.py`); empty: those of `LANGUAGES`.

    Raises:
        UsageError: no such folder, or no file with one of the suffixes in it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", remedy="give a folder of code")
    wanted = frozenset(suffixes) or frozenset(s for each in LANGUAGES.values() for s in each)
    # Git names nothing in a folder that it ignores as a whole; the caller means it all the same.
    found = sorted(_tracked(folder) or _walk(folder))
    files = [f for f in found if f.suffix in wanted and f.is_file() and not _linked(f, folder)]
    if not files:
        shown = ", ".join(sorted(suffixes)) or "a programming language's"
        raise UsageError(
            f"{folder}: no file of code ({shown} suffix)",
            remedy="give another folder, or name its files' suffixes with `suffixes`",
        )
    return files


def read_code(folder: Path, files: Sequence[Path]) -> Iterator[CodeFile | RefusedFile]:
    """Read each of `files`, once per content.

    Yields:
        One value for each file, in their order.
    """
    seen: set[str] = set()
    for file in files:
        path = file.relative_to(folder).as_posix()
        try:
            raw = file.read_bytes() if file.stat().st_size <= _LARGEST else None
        except OSError:
            yield RefusedFile(path=path, reason="unreadable")
            continue
        yield _judged(path, raw, seen)


def _judged(path: str, raw: bytes | None, seen: set[str]) -> CodeFile | RefusedFile:
    if raw is None:
        return RefusedFile(path=path, reason="too large")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return RefusedFile(path=path, reason="not UTF-8")
    text = text.replace("\r\n", "\n")
    digest = digest_bytes("\n".join(line.rstrip() for line in text.split("\n")).encode())
    reason = _refusal(path, text) or ("duplicate" if digest in seen else "")
    seen.add(digest)
    if reason:
        return RefusedFile(path=path, reason=reason)
    return CodeFile(path=path, language=_language(path), text=text)


def _refusal(path: str, text: str) -> str:
    lines = text.split("\n")
    full = [line for line in lines if line.strip()]
    if not full or "\0" in text:
        return "not UTF-8" if "\0" in text else "empty"
    if _GENERATED_NAME.search(path) or _GENERATED.search(text[:_HEAD]):
        return "generated"
    if _MINIFIED_NAME.search(path) or sum(map(len, full)) > _LONGEST_MEAN * len(full):
        return "minified"
    return "long lines" if max(map(len, lines)) > _LONGEST_LINE else ""


def _language(path: str) -> str:
    suffix = Path(path).suffix
    return next((name for name, each in LANGUAGES.items() if suffix in each), suffix)


def _tracked(folder: Path) -> list[Path]:
    """What git does not ignore below `folder`; nothing where it is no checkout or git is absent."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others"]
    try:
        done = subprocess.run(
            [*command, "--exclude-standard"], capture_output=True, check=True, timeout=600
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [folder / name for name in names if not SKIPPED & set(Path(name).parts[:-1])]


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (Path(root) / name for name in names)


def _linked(file: Path, folder: Path) -> bool:
    """Whether the file or a folder on the way to it is a link."""
    parts = [file, *file.parents]
    return any(part.is_symlink() for part in parts[: parts.index(folder)])
