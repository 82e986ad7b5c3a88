"""The Python environment of a task: pytest and what the package needs, never the package."""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import distributions
from pathlib import Path

from insitu.kit.atomic import atomic_folder
from insitu.kit.digest import digest_bytes
from insitu.tasks.source import SourceTree
from insitu.types import TaskError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The running version, which environments share."""
_ALWAYS = ("pytest>=8",)


def build_environment(source: SourceTree, envs: Path, pins: Sequence[str] = ()) -> Path:
    """A folder under `envs` with `bin/python` and its site-packages; shared by equal needs.

    Args:
        source: what the environment is for.
        envs: where environments are.
        pins: versions of what gets installed, e.g. `("pytest==9.0.0",)`; what is not needed is not
            installed for that.

    The environment has no pip and no package of `source`; the workspace gets on the path by
    PYTHONPATH.

    Raises:
        TaskError: a requirement cannot be installed, or one of them brings the package itself.
    """
    needs = sorted({*_ALWAYS, *source.requires})
    target = envs / environment_name(source.requires, pins)
    if not target.is_dir():
        with atomic_folder(target) as folder:
            _run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], source)
            packages = str(site_packages(folder))
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", packages]
            limits = folder / "pins.txt"
            limits.write_text("".join(f"{pin}\n" for pin in pins))
            install += ["--disable-pip-version-check", "--upgrade", "--constraint", str(limits)]
            _run([*install, *needs], source)
            (folder / "insitu-env.json").write_text(json.dumps({"python": PYTHON, "needs": needs}))
    for name in source.packages:
        site = site_packages(target)
        if (site / name).exists() or (site / f"{name}.py").exists():
            raise TaskError(
                f"{source.name}: its environment brings an installed copy of `{name}`, which the"
                " agent could read",
                remedy="choose another package: this one is needed by pytest or by its own tests",
            )
    return target


def environment_name(requires: Iterable[str], pins: Iterable[str] = ()) -> str:
    """Name of the folder under `envs` for these requirements and this version of Python."""
    needs = [*sorted({*_ALWAYS, *requires}), *(f"at {pin}" for pin in sorted(pins))]
    return digest_bytes(PYTHON.encode(), *[n.encode() for n in needs])[:16]


def installed(env: Path) -> dict[str, str]:
    """Name and version of everything in an environment."""
    found = distributions(path=[str(site_packages(env))])
    return {d.metadata["Name"].lower(): d.version for d in found}


def site_packages(env: Path) -> Path:
    """Where an environment's packages are."""
    return env / "lib" / f"python{PYTHON}" / "site-packages"


def _run(command: list[str], source: SourceTree) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    if run.returncode and "No space left on device" in run.stderr:
        raise TaskError(f"{source.name}: the disk is full", remedy="free some space, then go on")
    if run.returncode:
        lines = [s for s in run.stderr.splitlines() if "ERROR" in s] or run.stderr.splitlines()
        raise TaskError(
            f"{source.name} {source.version}: its requirements do not install"
            f" ({(lines or ['no message'])[-1].strip()[:200]})",
            remedy="check name, version and network, or leave the package out",
        )
