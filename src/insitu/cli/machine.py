"""Looking at this machine: sandbox back-ends, engines, devices, memory, disk."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

_MIN_MEMORY_GB = 6.0
_MIN_DISK_GB = 5.0
_GB = 1e9
_NO_CUDA = "not found"
_NEEDED_BY = {"embedded": ("torch", "transformers")}
"""The packages of each engine that a recipe can name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that insitu can use, and whether it can here.

    Example: `Finding(part="sandbox", name="bubblewrap", works=True, detail="0.11.0",
    needed=True)`.
    """

    part: str
    """`machine`, `sandbox`, `engine`, `model API` or `device`."""
    name: str
    works: bool
    detail: str
    remedy: str = ""
    """What to do where it does not work; empty where it does or nothing can be done."""
    needed: bool = False
    """Whether the demo needs it."""


def findings() -> list[Finding]:
    """Everything insitu looks for, in the order in which a person would ask."""
    return [*_machine(), *_sandboxes(), *_engines(), *_apis(), *_devices()]


def _machine() -> Iterator[Finding]:
    wanted = sys.version_info >= (3, 11)
    yield Finding(
        part="machine",
        name="python",
        works=wanted,
        detail=platform.python_version(),
        remedy="" if wanted else "use Python 3.11 or later",
        needed=True,
    )
    cores = len(os.sched_getaffinity(0))
    yield Finding(part="machine", name="cores", works=True, detail=str(cores))
    memory = available_memory() / _GB
    enough = memory >= _MIN_MEMORY_GB
    yield Finding(
        part="machine",
        name="memory",
        works=enough,
        detail=f"{memory:.1f} GB free",
        remedy="" if enough else f"the demo is made for {_MIN_MEMORY_GB:.0f} GB",
    )
    for name, folder in (("disk", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / _GB
        enough = free >= _MIN_DISK_GB
        yield Finding(
            part="machine",
            name=name,
            works=enough,
            detail=f"{free:.1f} GB free in {folder}",
            remedy="" if enough else f"free some space: {_MIN_DISK_GB:.0f} GB are wanted",
        )


def available_memory() -> float:
    """Bytes that a new process may use: what the kernel calls available, within the cgroup."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    available = float(fields["MemAvailable"].split()[0]) * 1024
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    used = _number(Path("/sys/fs/cgroup/memory.current"))
    return available if limit is None else min(available, limit - (used or 0.0))


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _sandboxes() -> Iterator[Finding]:
    from insitu.sandbox.probe import probe

    for name, works, detail in probe():
        yield Finding(
            part="sandbox",
            name=name,
            works=works,
            detail=detail if works else "does not work here",
            remedy="" if works else detail,
            needed=name == "bubblewrap",
        )


def _engines() -> Iterator[Finding]:
    """The engines that a recipe can name; others are no use to it, installed or not."""
    from insitu.config.engine import EngineConfig

    for name in get_args(EngineConfig.model_fields["kind"].annotation):
        lacking = [package for package in _NEEDED_BY[name] if find_spec(package) is None]
        there = ", ".join(f"{package} {_version(package)}" for package in _NEEDED_BY[name])
        yield Finding(
            part="engine",
            name=name,
            works=not lacking,
            detail=f"not installed: {', '.join(lacking)}" if lacking else there,
            remedy=f"pip install {' '.join(lacking)}" if lacking else "",
            needed=name == "embedded",
        )


def _apis() -> Iterator[Finding]:
    """The model APIs that a product may speak."""
    from insitu.gateway.dialects.table import ROUTES

    for name, route in ROUTES.items():
        yield Finding(part="model API", name=name, works=True, detail=route)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _devices() -> Iterator[Finding]:
    yield Finding(part="device", name="cpu", works=True, detail=_processor())
    listed = _nvidia()
    if not listed:
        remedy = "install NVIDIA's driver, if there is such a device"
        yield Finding(part="device", name="cuda", works=False, detail=_NO_CUDA, remedy=remedy)
    torch = _version("torch")
    lacking = "" if "+cpu" not in torch else f"torch {torch} is built without CUDA"
    for index, line in enumerate(listed):
        yield Finding(
            part="device",
            name=f"cuda:{index}",
            works=not lacking,
            detail=f"{line}; {lacking or 'for the engine: training uses the CPU'}",
            remedy="install a torch that is built with CUDA" if lacking else "",
        )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    fast = [
        name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16") if name in flags
    ]
    return " ".join([fields.get("model name", platform.machine()), *fast])


def _nvidia() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
