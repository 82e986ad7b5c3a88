"""Get a package's source tree with its tests: from an index, an archive, or a folder."""

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from insitu.kit.atomic import atomic_folder, write_atomic
from insitu.kit.codec import from_json, to_json
from insitu.kit.digest import digest_bytes
from insitu.tasks.layout import read_source
from insitu.tasks.licence import check_licence, licence_of
from insitu.tasks.unpack import copy_tree, unpack
from insitu.types import TaskError

_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".whl")
_NOT_PACKAGES = re.compile(
    r"^(tests?|testing|docs?|examples?|benchmarks?|tools?|scripts?|ci.*|demo|bin|dev|requirements|"
    r"setup|conftest|tasks|noxfile|fabfile|versioneer|mypy_stubs|changelog.*|src)$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSpec:
    """What to fetch and how to treat it.

    Example: `PackageSpec(source="toolz==1.2.0")`, or a folder or an archive as `source`.
    """

    source: str
    """`name`, `name==version`, path of an sdist or wheel, or path of a folder."""
    requires: tuple[str, ...] = ()
    """More requirements for its tests, e.g. `("freezegun",)`."""
    test_files: tuple[str, ...] = ()
    """Globs relative to the tree; empty takes all test files."""
    skip_tests: tuple[str, ...] = ()
    """Globs of test names to leave out."""
    allow_failing: bool = False
    """Leave failing tests out instead of refusing the package."""
    drop_options: bool = False
    """Take `addopts` out of its pytest settings: tasks load no pytest plugins."""
    allow_licence: bool = False
    """Use it although its licence is not on the permissive list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """A pristine source tree in a task set."""

    name: str
    version: str
    base: str
    """Name of the folder under `<set>/bases`."""
    import_root: str
    """`.` or `src`: the folder of the tree from which the package is imported."""
    packages: tuple[str, ...]
    """Names that are imported from it."""
    test_files: tuple[str, ...]
    requires: tuple[str, ...]
    licence: str
    digest: str
    """Of all its files."""


def fetch(spec: PackageSpec, bases: Path) -> SourceTree:
    """The source tree under `bases`, made unless it is there already.

    Raises:
        TaskError: it cannot be had, has no tests, or may not be used; nothing is left behind.
    """
    with tempfile.TemporaryDirectory(prefix="insitu-source-") as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        origin = Path(spec.source)
        if origin.is_dir():
            copy_tree(origin, tree)
        elif origin.is_file() and origin.name.endswith(_ARCHIVES):
            unpack(origin, tree)
        elif "/" in spec.source or spec.source.endswith(_ARCHIVES):
            raise TaskError(f"{spec.source}: no such folder or archive", remedy="check the path")
        else:
            unpack(_download(spec.source, Path(temporary)), tree)
        if spec.drop_options:
            _drop_options(tree)
        source = describe(tree, spec)
        target = bases / source.base
        record = bases / f"{source.base}.json"
        if not (target.is_dir() and record.is_file() and _load(record) == source):
            with atomic_folder(target) as folder:
                copy_tree(tree, folder)
            write_atomic(record, to_json(source))
    return source


def describe(tree: Path, spec: PackageSpec) -> SourceTree:
    """What an unpacked tree holds.

    Raises:
        TaskError: no tests, no package, or a licence that forbids its use.
    """
    metadata = _metadata(tree)
    name, version = _identity(tree, metadata, spec.source)
    licence = licence_of(tree, metadata)
    check_licence(f"{name} {version}", licence, allow=spec.allow_licence)
    import_root = "src" if _importable(tree / "src") else "."
    packages = _importable(tree / import_root)
    if not packages:
        raise TaskError(f"{name} {version} holds no Python package", remedy="check its layout")
    tests = _test_files(tree, spec)
    if not tests:
        raise TaskError(
            f"{name} {version} carries no tests"
            + (f" like {spec.test_files}" * bool(spec.test_files)),
            remedy="give a folder of its repository instead of the package",
        )
    return SourceTree(
        name=name,
        version=version,
        base=f"{name}-{version}",
        import_root=import_root,
        packages=packages,
        test_files=tests,
        requires=tuple(sorted({*_requirements(tree, metadata), *spec.requires})),
        licence=licence,
        digest=_digest(tree),
    )


def is_test_path(path: str) -> bool:
    """Whether a relative path belongs to the tests: by folder or by name."""
    *folders, name = path.split("/")
    return (
        any(f in ("tests", "test", "testing") for f in folders)
        or name.startswith("test_")
        or name.endswith(("_test.py", "_tests.py"))
        or name in ("conftest.py", "tests.py", "test.py")
    )


def source_files(tree: Path, source: SourceTree) -> list[str]:
    """The package's own Python files, relative to the tree, without tests; sorted."""
    root = tree / source.import_root
    found: list[Path] = []
    for name in source.packages:
        found += [root / f"{name}.py"] if (root / f"{name}.py").is_file() else []
        found += (root / name).rglob("*.py")
    relative = sorted({p.relative_to(tree).as_posix() for p in found})
    return [p for p in relative if not is_test_path(p) and _parses(tree / p)]


def _parses(path: Path) -> bool:
    try:
        ast.parse(read_source(path))
    except (SyntaxError, ValueError):
        return False  # templates and files for other versions of Python: left alone
    return True


def _load(record: Path) -> SourceTree:
    return from_json(SourceTree, record.read_bytes())


def _download(requirement: str, folder: Path) -> Path:
    """The sdist by `pip download`, or the wheel where there is no sdist."""
    problem = ""
    for choice in ("--no-binary", "--only-binary"):
        target = folder / choice.strip("-")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", choice]
        command += [":all:", "--disable-pip-version-check", "--dest", str(target), requirement]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        files = sorted(target.glob("*")) if target.is_dir() else []
        if run.returncode == 0 and files:
            return files[0]
        lines = [s for s in run.stderr.splitlines() if s.startswith("ERROR")] or [run.stderr[-200:]]
        problem = problem or lines[-1].strip()
    raise TaskError(
        f"{requirement} cannot be downloaded: {problem}",
        remedy="check name, version and network, or give a folder",
    )


_OPTIONS = (
    re.compile(r"^addopts\s*=\s*\[.*?\]\s*?$", re.M | re.S),  # a TOML list
    re.compile(r"^addopts\s*=\s*(\"\"\"|\'\'\').*?\1\s*?$", re.M | re.S),  # a TOML text
    re.compile(r"^addopts\s*=[^\n]*(?:\n[ \t]+[^\n]*)*", re.M),  # a TOML line, or INI
)


def _drop_options(tree: Path) -> None:
    for name in ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"):
        path = tree / name
        if path.is_file():
            text = read_source(path)
            for pattern in _OPTIONS:
                text = pattern.sub("", text)
            path.write_bytes(text.encode())


def _metadata(tree: Path) -> str:
    for path in (tree / "PKG-INFO", tree / "pyproject.toml"):
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _project(tree: Path) -> dict[str, object]:
    path = tree / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise TaskError(
            f"{path.name} is not TOML: {error}", remedy="mend it in the package"
        ) from error
    project = table.get("project", {})
    return project if isinstance(project, dict) else {}


def _identity(tree: Path, metadata: str, source: str) -> tuple[str, str]:
    project = _project(tree)
    name = re.search(r"^Name:\s*(\S+)", metadata, re.M)
    version = re.search(r"^Version:\s*(\S+)", metadata, re.M)
    fallback = re.split(r"-\d", Path(source).name)[0] if "/" in source else source.split("==")[0]
    plain = str(name[1] if name else project.get("name", fallback))
    number = str(version[1] if version else project.get("version", _commit(source)))
    return re.sub(r"[-_.]+", "-", plain).lower(), re.sub(r"[^\w.+]", "-", number)


def _commit(source: str) -> str:
    command = ["git", "-C", source, "rev-parse", "--short=12", "HEAD"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "0"
    return run.stdout.strip() if run.returncode == 0 else "0"


def _importable(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        return ()
    names = [
        p.name.removesuffix(".py")
        for p in sorted(root.iterdir())
        if (p / "__init__.py").is_file() or (p.suffix == ".py" and p.is_file())
    ]
    return tuple(n for n in names if n.isidentifier() and not _NOT_PACKAGES.match(n.lower()))


def _test_files(tree: Path, spec: PackageSpec) -> tuple[str, ...]:
    names = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*.py"))
    tests = [
        n
        for n in names
        if n.rsplit("/", 1)[-1].startswith("test_") or n.endswith(("_test.py", "_tests.py"))
    ]
    if spec.test_files:
        tests = [n for n in tests if any(Path(n).match(g) for g in spec.test_files)]
    return tuple(tests)


def _requirements(tree: Path, metadata: str) -> list[str]:
    stated = re.findall(r"^Requires-Dist:\s*(.+)$", metadata, re.M)
    if not stated and "PKG-INFO" not in metadata:
        depends = _project(tree).get("dependencies", [])
        stated = [str(d) for d in depends] if isinstance(depends, list) else []
    return [r.strip() for r in stated if not re.search(r"\bextra\s*==", r)]


def _digest(tree: Path) -> str:
    parts: list[bytes] = []
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        parts += [path.relative_to(tree).as_posix().encode(), path.read_bytes()]
    return digest_bytes(*parts)
