"""What all benchmarks share: the machine's description, the JSON form, environments, tables."""

import argparse
import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from insitu.kit.atomic import atomic_folder, write_atomic

Figure = float | int | str | None
ENVIRONMENTS = Path(".insitu") / "bench-envs"
_PACKAGES = ("insitu", "torch", "transformers", "numpy")


def machine() -> dict[str, Figure]:
    """What the figures were measured on. Load is the last minute's average, before it began."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        **{name: _version(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    """The processor's name and the instruction sets that matter here."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    return " ".join([fields.get("model name", platform.machine()), *known])


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with `--json`; a benchmark may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def write(
    name: str,
    figures: Mapping[str, Figure],
    json_path: Path | None,
    *,
    on: Mapping[str, Figure] | None = None,
) -> None:
    """Write `{"name", "machine", "figures"}`; `on` is `machine()` as it was at the beginning."""
    if json_path is not None:
        content = {"name": name, "machine": dict(on or machine()), "figures": dict(figures)}
        write_atomic(json_path, json.dumps(content, indent=2) + "\n")


def table(header: Sequence[str], rows: Sequence[Sequence[Figure]]) -> str:
    """Columns aligned for a terminal; numbers with three digits that count."""
    text = [list(header), *([_cell(v) for v in row] for row in rows)]
    widths = [max(len(row[i]) for row in text) for i in range(len(header))]
    lines = []
    for row in text:
        first, *rest = (cell.rjust(w) for cell, w in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]) if rest else first)
    return "\n".join(lines)


def _cell(value: Figure) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def environment(name: str, requirements: Sequence[str], remove: Sequence[str] = ()) -> Path:
    """The python of an environment of its own with `requirements`, made on first use.

    `remove` names packages uninstalled afterwards. The environment is whole or absent.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    wanted = "\n".join([*requirements, *(f"- {r}" for r in remove)])
    marker = folder / "requirements.txt"
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return python.absolute()
    print(f"making {folder} (once) …", file=sys.stderr, flush=True)
    with atomic_folder(folder) as new:
        # pip runs from outside with the folder as prefix, so that nothing in it has the
        # temporary path but its own activation scripts, which are not used.
        venv.create(new, with_pip=True, symlinks=True)
        pip = [str(new / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--quiet", *requirements], check=True)
        if remove:
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", *remove], check=True)
        (new / "requirements.txt").write_text(wanted, encoding="utf-8")
    return python.absolute()
