"""Starting a product's agent in a sandbox, unmodified."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from insitu.kit.log import get_log
from insitu.product.config import Product
from insitu.sandbox.base import Sandbox
from insitu.types import (
    ExecResult,
    Forward,
    Mount,
    ProductError,
    SandboxSpec,
    Task,
    UsageError,
)

_log = get_log("product")

PYTHON_MOUNT = "/opt/python"
"""Where the host's interpreter is shown, unless it belongs to the system."""
ENV_MOUNT = "/opt/env"
"""Where the task's Python environment is shown."""

_SITE_PACKAGES = f"lib/python3.{sys.version_info.minor}/site-packages"
_PREPARE_TIMEOUT_S = 600
_NOT_STARTED = (126, 127)  # what shells and env(1) say of a command that cannot be run


def sandbox_spec(product: Product, task: Task, gateway_socket: Path | None) -> SandboxSpec:
    """The computer on which `product` works on `task`.

    Read-only inside: the product, the interpreter, the task's environment, the instruction.
    The only way out is the gateway's socket, seen as the product's `port`.
    """
    mounts = [
        Mount(source=str(product.source_folder), target=product.mount),
        Mount(source=str(Path(task.folder) / "instruction.md"), target=product.issue),
    ]
    if not _belongs_to_system():
        mounts.append(Mount(source=sys.base_prefix, target=PYTHON_MOUNT))
    if task.env_path:
        mounts.append(Mount(source=task.env_path, target=ENV_MOUNT))
    if task.env_path and not _belongs_to_system():
        # The host's own packages may hold a sound copy of the one under repair.
        packages = str(packages_folder(Path(task.env_path)))
        mounts.append(Mount(source=packages, target=f"{PYTHON_MOUNT}/{_SITE_PACKAGES}"))
    forwards = (Forward(port=product.port, socket=str(gateway_socket)),) if gateway_socket else ()
    return SandboxSpec(
        layers=task.layers,
        workdir=task.workdir,
        mounts=tuple(mounts),
        env=environment(product, task),
        forwards=forwards,
        limits=product.sandbox_limits(),
    )


def base_url(product: Product) -> str:
    """The model API's address as the product sees it inside its sandbox."""
    return f"http://127.0.0.1:{product.port}/v1"


def command(product: Product, task: Task) -> list[str]:
    """The product's command line inside the sandbox."""
    names = _names(product, task)
    return [_fill(part, names) for part in product.command]


def environment(product: Product, task: Task) -> dict[str, str]:
    """The fixed part of the product's environment inside the sandbox."""
    names = _names(product, task)
    fixed = {name: _fill(value, names) for name, value in product.env.set.items()}
    if not _belongs_to_system() and any(Path(sys.base_prefix, "lib").glob("libpython3*.so*")):
        fixed.setdefault("LD_LIBRARY_PATH", f"{PYTHON_MOUNT}/lib")
    return fixed


async def run_product(
    product: Product,
    sandbox: Sandbox,
    task: Task,
    base_url: str,
    key: str,
    *,
    model: str = "policy",
) -> ExecResult:
    """Run the product's agent on the task, to its end or its time limit.

    Whatever it does is an outcome; the result's exit code and output say what it was.

    Raises:
        ProductError: it could not be started at all.
        SandboxError: the sandbox is gone, or went while it ran.
    """
    env = {product.env.base_url: base_url, product.env.key: key, product.env.model: model}
    workdir = task.workdir if product.workdir == "task" else product.workdir
    result = await sandbox.exec(
        command(product, task),
        env=env,
        cwd=workdir,
        timeout_s=min(product.timeout_s, task.agent_timeout_s),
    )
    if result.exit_code in (*_NOT_STARTED, *product.fault_exit_codes):
        said = result.stderr.decode(errors="replace").strip()[-500:]
        raise ProductError(f"{product.name} ended with exit code {result.exit_code}: {said}")
    return result


def prepare_product(product: Product) -> None:
    """Run the product's `prepare` command, once on the host before any episode.

    Raises:
        UsageError: the command failed or cannot be run.
    """
    if not product.prepare:
        return
    names = {"python": sys.executable, "mount": str(product.source_folder)}
    names |= {"packages": "", "issue": product.issue, "workdir": ""}
    argv = [_fill(part, names) for part in product.prepare]
    try:
        done = subprocess.run(
            argv,
            cwd=product.source_folder,
            capture_output=True,
            check=False,
            timeout=_PREPARE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UsageError(f"{product.name}: `prepare` failed: {e}", remedy=_REMEDY) from e
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
        said = said or f"exit code {done.returncode}"
        raise UsageError(f"{product.name}: `prepare` failed: {said}", remedy=_REMEDY)
    _log.info("prepared %s", product.name)


_REMEDY = "correct `prepare` in its product.toml"


def packages_folder(env_path: Path) -> Path:
    """Where the packages of a Python environment lie: `lib/python3.X/site-packages`, or itself."""
    wanted = env_path / _SITE_PACKAGES
    if wanted.is_dir():
        return wanted
    return next(iter(sorted(env_path.glob("lib/python3*/site-packages"))), env_path)


def _names(product: Product, task: Task) -> dict[str, str]:
    packages = ""
    if task.env_path:
        inside = packages_folder(Path(task.env_path)).relative_to(task.env_path)
        packages = (Path(ENV_MOUNT) / inside).as_posix()
    return {
        "python": _interpreter(),
        "mount": product.mount,
        "packages": packages,
        "issue": product.issue,
        "workdir": task.workdir,
    }


def _fill(text: str, names: Mapping[str, str]) -> str:
    filled = text.format_map(names)
    # An empty part of a search path would mean the current folder.
    if "{packages}" in text and not names["packages"]:
        filled = re.sub(r"^:+|:+$", "", re.sub(r":{2,}", ":", filled))
    return filled


def _belongs_to_system() -> bool:
    """Whether it is the system's interpreter, which every sandbox shows anyway.

    What lies in /usr/local is hidden in sandboxes and has to be shown as any other.
    """
    return sys.base_prefix == "/usr"


def _interpreter() -> str:
    """The host's interpreter, without any virtual environment, as seen inside the sandbox."""
    name = f"bin/python3.{sys.version_info.minor}"
    root = Path(sys.base_prefix) if _belongs_to_system() else Path(PYTHON_MOUNT)
    return (root / name).as_posix()
