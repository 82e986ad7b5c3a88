import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from insitu.product import launch
from insitu.product.config import Product, read_product
from insitu.types import Change, ExecResult, ProductError, SandboxError, Task, UsageError

MENDER = Path(__file__).parents[3] / "examples/mender"


@pytest.fixture
def product() -> Product:
    return read_product(MENDER)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "env/bin").mkdir(parents=True)
    return Task(
        task_id="t-1",
        folder=str(tmp_path / "t-1"),
        instruction="fix it",
        layers=(str(tmp_path),),
        workdir="/home/dev/pkg",
        env_path=str(tmp_path / "env"),
        agent_timeout_s=20.0,
        verifier_timeout_s=5.0,
    )


class HostSandbox:
    """Runs commands on the host: what `run_product` asks for, without the isolation."""

    sandbox_id = "host"

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.asked: dict[str, object] = {}
        self.gone = False

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        if self.gone:
            raise SandboxError("gone")
        self.asked = {"env": dict(env or {}), "cwd": cwd, "timeout_s": timeout_s}
        done = await asyncio.to_thread(
            subprocess.run, argv, env=env, cwd=self.workdir, capture_output=True, input=stdin
        )
        return ExecResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    async def read(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        raise FileNotFoundError(path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None: ...

    async def changes(self) -> tuple[Change, ...]:
        return ()

    async def apply(self, changes: Sequence[Change]) -> None: ...

    async def destroy(self) -> None:
        self.gone = True


def test_everything_is_shown_read_only_and_only_the_gateway_is_reachable(
    product: Product, task: Task
) -> None:
    spec = launch.sandbox_spec(product, task, Path("/run/gateway.sock"))
    shown = {mount.target: mount.source for mount in spec.mounts}
    assert shown["/opt/mender"] == str(MENDER)
    assert shown["/home/dev/ISSUE.md"] == str(Path(task.folder) / "instruction.md")
    assert shown["/opt/env"] == task.env_path
    assert spec.layers == task.layers
    assert spec.workdir == task.workdir
    assert [(f.port, f.socket) for f in spec.forwards] == [(8080, "/run/gateway.sock")]
    assert launch.base_url(product) == "http://127.0.0.1:8080/v1"
    assert not launch.sandbox_spec(product, task, None).forwards


def test_no_key_and_no_host_path_is_in_the_environment(product: Product, task: Task) -> None:
    env = launch.environment(product, task)
    assert env["PYTHONPATH"] == "/opt/mender:/opt/env"
    assert not any(str(Path.home()) in value or task.folder in value for value in env.values())


def test_packages_are_found_in_a_venv(product: Product, task: Task) -> None:
    inside = f"lib/python3.{sys.version_info.minor}/site-packages"
    (Path(task.env_path) / inside).mkdir(parents=True)
    assert launch.environment(product, task)["PYTHONPATH"] == f"/opt/mender:/opt/env/{inside}"


def test_without_an_environment_the_search_path_has_no_empty_part(
    product: Product, task: Task
) -> None:
    bare = Task(
        task_id="t", folder=task.folder, instruction="", layers=(), workdir="/w", env_path="",
        agent_timeout_s=1.0, verifier_timeout_s=1.0,
    )  # fmt: skip
    assert launch.environment(product, bare)["PYTHONPATH"] == "/opt/mender"


def test_the_interpreter_is_the_one_that_is_mounted(product: Product, task: Task) -> None:
    python = launch.command(product, task)[0]
    spec = launch.sandbox_spec(product, task, None)
    roots = {m.target: m.source for m in spec.mounts}
    if launch.PYTHON_MOUNT in roots:
        python = python.replace(launch.PYTHON_MOUNT, roots[launch.PYTHON_MOUNT])
    assert Path(python).is_file()
    assert os.access(python, os.X_OK)


async def test_the_product_is_told_base_url_key_and_model_and_nothing_else(
    product: Product, task: Task, tmp_path: Path
) -> None:
    product = product.model_copy(update={"command": ("/usr/bin/env",)})
    sandbox = HostSandbox(tmp_path)
    result = await launch.run_product(product, sandbox, task, "http://x/v1", "k-1", model="m")
    assert sorted(result.stdout.decode().split()) == [
        "MENDER_MODEL=m", "OPENAI_API_KEY=k-1", "OPENAI_BASE_URL=http://x/v1",
    ]  # fmt: skip
    assert sandbox.asked["cwd"] == "/home/dev/pkg"
    assert sandbox.asked["timeout_s"] == 20.0  # the task's limit is shorter


async def test_an_agent_that_fails_is_an_outcome(
    product: Product, task: Task, tmp_path: Path
) -> None:
    product = product.model_copy(update={"command": ("/bin/sh", "-c", "exit 3")})
    result = await launch.run_product(product, HostSandbox(tmp_path), task, "u", "k")
    assert result.exit_code == 3


@pytest.mark.parametrize("code", [126, 127, 2])
async def test_an_agent_that_does_not_start_is_a_fault(
    product: Product, task: Task, tmp_path: Path, code: int
) -> None:
    shell = ("/bin/sh", "-c", f"echo no such thing >&2; exit {code}")
    product = product.model_copy(update={"command": shell})
    with pytest.raises(ProductError, match=f"mender ended with exit code {code}: no such thing"):
        await launch.run_product(product, HostSandbox(tmp_path), task, "u", "k")


async def test_a_sandbox_that_is_gone_is_a_fault(
    product: Product, task: Task, tmp_path: Path
) -> None:
    sandbox = HostSandbox(tmp_path)
    await sandbox.destroy()
    with pytest.raises(SandboxError, match="gone"):
        await launch.run_product(product, sandbox, task, "u", "k")


def test_prepare_runs_in_the_source_folder(product: Product, tmp_path: Path) -> None:
    product = product.model_copy(
        update={"folder": tmp_path, "prepare": ("{python}", "-c", "open('made', 'w')")}
    )
    launch.prepare_product(product)
    assert (tmp_path / "made").is_file()
    launch.prepare_product(product.model_copy(update={"prepare": ()}))
    for broken in (("{python}", "-c", "raise SystemExit('wat')"), ("/no/such/program",)):
        with pytest.raises(UsageError, match=r"mender: `prepare` failed: .*(wat|No such file)"):
            launch.prepare_product(product.model_copy(update={"prepare": broken}))
