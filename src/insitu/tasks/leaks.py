"""Look for copies of the intact code that an agent could reach."""

import zipfile
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from insitu.tasks.fingerprint import fingerprints
from insitu.tasks.unpack import is_dropped

_ARCHIVES = (".zip", ".whl", ".egg", ".tar", ".gz", ".tgz", ".bz2", ".xz")
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
        places: the source tree and the environment; they must not change any more.
        path: the broken file, left out.
        qualname: of the function.
        intact: text of the file before the bug.
    """
    wanted = {d for (name, _), d in fingerprints(intact).items() if name == qualname}
    return [
        f"{file}: the same function"
        for place in places
        for digest in sorted(wanted)
        for file in sorted(_index(place).get(digest, ()))
        if file != path
    ]


@cache
def _index(place: Path) -> dict[str, frozenset[str]]:
    """By fingerprint, the files of a folder that hold such a function."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(place.rglob("*.py")):
        for digest in _functions_in(file):
            found[digest].add(file.relative_to(place).as_posix())
    return {digest: frozenset(files) for digest, files in found.items()}


def _functions_in(file: Path) -> frozenset[str]:
    if file.stat().st_size > _MOST_BYTES:
        return frozenset()
    try:
        return frozenset(fingerprints(file.read_bytes().decode("utf-8")).values())
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()  # not Python of this version: nothing to compare


def functions_of(bases: Iterable[Path]) -> frozenset[str]:
    """Fingerprints of all functions under some folders."""
    return frozenset(digest for base in bases for digest in _index(base))
