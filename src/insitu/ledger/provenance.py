"""Which software a run used."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("insitu", "torch", "transformers", "renderers", "vllm", "safetensors", "pyarrow")


def software_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run's numbers depend on, and the commit.

    Example: `{"python": "3.11.7", "insitu": "0.1.0", "torch": "2.13.0", "commit": "9f0c1d2"}`.
    A package that is not installed is left out, and so is the commit outside a checkout.
    """
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if commit := _commit():
        found["commit"] = commit
    return found


def _commit() -> str:
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # A checkout around an installed copy would name somebody else's commit.
    inside = any((parent / ".git").exists() for parent in folder.parents[:3])
    return done.stdout.strip() if inside and done.returncode == 0 else ""
