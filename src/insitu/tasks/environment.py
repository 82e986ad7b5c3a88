"""The Python environment of a task: pytest and what the package needs, never the package."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from insitu.kit.atomic import atomic_folder
from insitu.kit.digest import digest_bytes
from insitu.tasks.source import SourceTree
from insitu.types import TaskError

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_ALWAYS = ("pytest>=8",)


def build_environment(source: SourceTree, envs: Path) -> Path:
    """A folder under `envs` with `bin/python` and its site-packages; shared by equal needs.

    The environment has no pip and no package of `source`; the workspace gets on the path by
    PYTHONPATH.

    Raises:
        TaskError: a requirement cannot be installed, or one of them brings the package itself.
    """
    needs = sorted({*_ALWAYS, *source.requires})
    target = envs / environment_name(source.requires)
    if not target.is_dir():
        with atomic_folder(target) as folder:
            _run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], source)
            packages = str(site_packages(folder))
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", packages]
            _run([*install, "--disable-pip-version-check", "--upgrade", *needs], source)
            (folder / "insitu-env.json").write_text(
                json.dumps({"python": _VERSION, "needs": needs})
            )
    for name in source.packages:
        site = site_packages(target)
        if (site / name).exists() or (site / f"{name}.py").exists():
            raise TaskError(
                f"{source.name}: its environment brings an installed copy of `{name}`, which the"
                " agent could read",
                remedy="choose another package: this one is needed by pytest or by its own tests",
            )
    return target


def environment_name(requires: Iterable[str]) -> str:
    """Name of the folder under `envs` for these requirements and this version of Python."""
    needs = sorted({*_ALWAYS, *requires})
    return digest_bytes(_VERSION.encode(), *[n.encode() for n in needs])[:16]


def site_packages(env: Path) -> Path:
    """Where an environment's packages are."""
    return env / "lib" / f"python{_VERSION}" / "site-packages"


def _run(command: list[str], source: SourceTree) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    if run.returncode:
        lines = [s for s in run.stderr.splitlines() if "ERROR" in s] or run.stderr.splitlines()
        raise TaskError(
            f"{source.name} {source.version}: its requirements do not install"
            f" ({(lines or ['no message'])[-1].strip()[:200]})",
            remedy="check name, version and network, or leave the package out",
        )
