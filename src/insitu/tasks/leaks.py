"""Look for copies of the intact code that an agent could reach."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

from insitu.tasks.fingerprint import fingerprints
from insitu.tasks.unpack import is_dropped

_ARCHIVES = (".zip", ".whl", ".egg", ".tar", ".gz", ".tgz", ".bz2", ".xz")
_TEXT = (".py", ".txt", ".md", ".rst", ".pyi", ".pyx", ".ipynb", ".patch", ".diff", "")
_MOST_BYTES = 4 << 20


def sweep_tree(base: Path) -> list[str]:
    """What a source tree should not hold: caches, bytecode, version control, builds, archives.

    Returns:
        One line per find, `path: why`; empty if it is clean.
    """
    finds = []
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        if is_dropped(relative.parts):
            finds.append(f"{relative}: cache, bytecode, build output or version control")
        elif path.is_symlink():
            finds.append(f"{relative}: link")
        elif path.is_file() and _holds_python(path):
            finds.append(f"{relative}: archive with Python code")
    return finds


def _holds_python(path: Path) -> bool:
    if path.suffix not in _ARCHIVES or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(n.endswith((".py", ".pyc")) for n in archive.namelist())


def sweep_environment(env: Path, packages: Iterable[str]) -> list[str]:
    """Installed copies of the packages, or of their metadata, in an environment."""
    finds = []
    names = {p.lower().replace("-", "_") for p in packages}
    for path in sorted(env.rglob("*")):
        stem = path.name.removesuffix(".py").removesuffix(".pth").lower()
        bare = stem.split("-")[0].replace(".", "_") if path.suffix == ".dist-info" else stem
        if bare in names and path.parent.name in ("site-packages", "src"):
            finds.append(f"{path.relative_to(env)}: installed copy")
        elif path.suffix in (".pth", ".egg-link"):
            finds.append(f"{path.relative_to(env)}: leads elsewhere")
    return finds


def sweep_function(places: Iterable[Path], *, path: str, qualname: str, intact: str) -> list[str]:
    """Other copies of one intact function in the Python files of some folders.

    Args:
        places: the source tree and the environment.
        path: the broken file, left out.
        qualname: of the function.
        intact: text of the file before the bug.
    """
    wanted = {d for (name, _), d in fingerprints(intact).items() if name == qualname}
    finds = []
    for place in places:
        for file in sorted(place.rglob("*.py")):
            relative = file.relative_to(place).as_posix()
            if relative != path and wanted & functions_in(file):
                finds.append(f"{relative}: the same function")
    return finds


_known: dict[tuple[str, int, int], frozenset[str]] = {}


def functions_in(file: Path) -> frozenset[str]:
    """Fingerprints of a file's functions; remembered by path, size and time."""
    info = file.stat()
    key = (str(file), info.st_size, info.st_mtime_ns)
    if key not in _known:
        found: frozenset[str] = frozenset()
        if info.st_size <= _MOST_BYTES:
            try:
                found = frozenset(fingerprints(file.read_text(encoding="utf-8")).values())
            except (SyntaxError, ValueError, RecursionError):
                found = frozenset()  # not Python of this version: nothing to compare
        _known[key] = found
    return _known[key]


def functions_of(bases: Iterable[Path]) -> frozenset[str]:
    """Fingerprints of all functions under some folders."""
    files = (file for base in bases for file in sorted(base.rglob("*.py")))
    return frozenset(d for file in files for d in functions_in(file))
