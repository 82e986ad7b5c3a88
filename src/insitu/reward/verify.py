"""The verifier: a fresh sandbox, the task's own tests, and only the agent's diff.

Nothing of the agent's sandbox crosses but the changes to the workspace, without those to
tests and test settings (`protect`). The named tests run under `inside.py`, whose answer
carries a nonce made for this run. A verdict is `passed` only if every named test passed,
the answer's exit code and the process's agree on 0, and the harness was left alone.

A task without named tests is judged by its `tests/test.sh`, as Harbor does: the number in
`/logs/verifier/reward.txt`, or the exit code where it writes none.

The code under test runs in the process that reports on it, so a program written to find the
channel in its own memory could still lie. What is held is everything short of that.
"""

import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from insitu.kit.digest import digest_bytes
from insitu.reward.cache import VerdictCache, changes_digest
from insitu.reward.protect import effective_changes
from insitu.sandbox import paths
from insitu.sandbox.base import Sandbox, SandboxBackend
from insitu.sandbox.guard import ConflictError
from insitu.types import Change, ExecResult, Limits, Mount, SandboxError, SandboxSpec, Task, Verdict

_SCRIPT = Path(__file__).with_name("inside.py")
_SCRIPT_TARGET = "/opt/judge/run.py"
_TESTS_TARGET = "/tests"
_REWARD_FILE = "/logs/verifier/reward.txt"
_VERSION = b"1"
_SHOWN = 3
LIMITS = Limits(memory_mb=768, pids=64, open_files=512, disk_mb=64, output_bytes=1 << 20)


class Verifier:
    """Judges workspace diffs.

    Example: `await Verifier(backend, Path("cache")).judge(task, changes)`.
    """

    def __init__(
        self, backend: SandboxBackend, cache: Path | None = None, *, limits: Limits = LIMITS
    ) -> None:
        self._backend = backend
        self._cache = VerdictCache(cache)
        self._limits = limits

    async def judge(self, task: Task, changes: Sequence[Change]) -> Verdict:
        """The verdict on `changes`; equal changes to one task are run once.

        Raises:
            SandboxError: a fault of the sandbox; nothing is known about the changes.
        """
        total = len(task.fail_to_pass) + len(task.pass_to_pass)
        kept, left = effective_changes(task, changes)
        if not kept:
            why = f"nothing changed but {', '.join(left[:_SHOWN])}" if left else "nothing changed"
            return Verdict(passed=False, tests_passed=0, tests_total=total, detail=why)
        key = digest_bytes(_VERSION, task.digest.encode(), changes_digest(kept).encode())
        known = self._cache.get(key) if task.digest else None
        if known:
            return known
        verdict = await self._run(task, kept, total)
        if task.digest:
            self._cache.put(key, verdict)
        return verdict

    async def _run(self, task: Task, changes: Sequence[Change], total: int) -> Verdict:
        started = time.monotonic()
        sandbox = await self._backend.create(judge_spec(task, self._limits))
        try:
            try:
                await sandbox.apply(changes)
            except ConflictError as e:
                return _no(total, f"the changes do not apply: {e}", started)
            if total:
                return await _run_named(sandbox, task, started)
            return await _run_script(sandbox, task, started)
        finally:
            await sandbox.destroy()


def judge_spec(task: Task, limits: Limits) -> SandboxSpec:
    """The judge's computer: the agent's workspace, the environment, the tests, no way out."""
    mounts = [*paths.interpreter_mounts(), Mount(source=str(_SCRIPT), target=_SCRIPT_TARGET)]
    packages = ""
    if task.env_path:
        mounts.append(Mount(source=task.env_path, target=paths.ENV_TARGET))
        packages = paths.packages_inside(Path(task.env_path))
    tests = Path(task.folder, "tests")
    if tests.is_dir():
        mounts.append(Mount(source=str(tests), target=_TESTS_TARGET))
    return SandboxSpec(
        layers=task.layers,
        workdir=task.workdir,
        mounts=tuple(mounts),
        env={
            "PYTHONPATH": packages,
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        limits=limits,
    )


async def _run_named(sandbox: Sandbox, task: Task, started: float) -> Verdict:
    names = [*task.fail_to_pass, *task.pass_to_pass]
    nonce = secrets.token_hex(16)
    root = task.metadata.get("import_root", "src" if _has_src(task) else ".")
    import_paths = [*([f"{task.workdir}/{root}"] if root != "." else []), task.workdir]
    request = {"nonce": nonce, "tests": names, "paths": import_paths}
    result = await sandbox.exec(
        [paths.interpreter(), "-P", "-s", _SCRIPT_TARGET],
        stdin=json.dumps(request).encode(),
        timeout_s=task.verifier_timeout_s,
    )
    return read_report(result, nonce, names, task.verifier_timeout_s, started)


def _has_src(task: Task) -> bool:
    """Whether the workspace keeps its packages below `src`."""
    return any(
        next(Path(layer, "src").glob("*/__init__.py"), None)
        or next(Path(layer, "src").glob("*.py"), None)
        for layer in task.layers
    )


def read_report(
    result: ExecResult, nonce: str, names: Sequence[str], timeout_s: float, started: float
) -> Verdict:
    """The verdict from what the run in the sandbox gave; only lines with the nonce count.

    Raises:
        SandboxError: the test runner did not even come up, so nothing was judged.
    """
    total = len(names)
    first, *others = result.stdout.split(b"\n")
    if not first.startswith(nonce.encode() + b" ") and not result.timed_out:
        said = result.stderr.decode(errors="replace").strip()[-400:]
        raise SandboxError(f"the judge's test runner did not start: {said}")
    if result.timed_out:
        return _no(total, f"timed out after {timeout_s:g} s", started)
    if result.oom:
        return _no(total, "out of memory", started)
    lines = [x for x in others if x]
    head, _, body = (lines[-1] if lines else b"").partition(b" ")
    if not secrets.compare_digest(head, nonce.encode()):
        return _no(total, f"the tests ended early with exit code {result.exit_code}", started)
    report = json.loads(body)
    outcomes = str(report["outcomes"])
    if len(outcomes) != total or report["exit"] != result.exit_code:
        return _no(total, "the report does not agree with the run", started)
    if not report["harness"]:
        return _no(total, "the test harness was changed while the tests ran", started)
    passed = outcomes.count("P")
    good = passed == total and result.exit_code == 0
    return Verdict(
        passed=good,
        tests_passed=passed,
        tests_total=total,
        detail="" if good else _failing(names, outcomes, report["errors"], result.exit_code),
        wall_s=time.monotonic() - started,
    )


def _failing(names: Sequence[str], outcomes: str, errors: dict[str, str], exit_code: int) -> str:
    words = {"F": "failed", "S": "skipped", "M": "missing"}
    bad = [f"{n} {words[o]}" for n, o in zip(names, outcomes, strict=True) if o != "P"]
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    why = next(iter(errors.values()), "")
    text = ", ".join(bad[:_SHOWN]) + more or f"exit code {exit_code}"
    return f"{text}: {why}" if why else text


async def _run_script(sandbox: Sandbox, task: Task, started: float) -> Verdict:
    """Harbor's way: run `tests/test.sh`, then read the reward it wrote."""
    result = await sandbox.exec(
        ["/bin/bash", f"{_TESTS_TARGET}/test.sh"], timeout_s=task.verifier_timeout_s
    )
    if result.timed_out:
        return _no(1, f"timed out after {task.verifier_timeout_s:g} s", started)
    try:
        reward = float(await sandbox.read(_REWARD_FILE, max_bytes=64))
    except FileNotFoundError:
        reward = float(result.exit_code == 0)
    except ValueError:
        reward = 0.0
    good = reward >= 1.0
    tail = (result.stderr or result.stdout)[-200:].decode(errors="replace").strip()
    return Verdict(
        passed=good,
        tests_passed=int(good),
        tests_total=1,
        detail="" if good else f"test.sh: exit code {result.exit_code}, reward {reward:g}: {tail}",
        wall_s=time.monotonic() - started,
    )


def _no(total: int, detail: str, started: float) -> Verdict:
    return Verdict(
        passed=False,
        tests_passed=0,
        tests_total=total,
        detail=detail,
        wall_s=time.monotonic() - started,
    )
