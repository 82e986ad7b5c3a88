"""What loading costs, and that heavy packages stay where they are needed."""

import os
import resource
import subprocess
import sys

from tests.arch.house import modules

HEAVY = ("torch", "transformers", "vllm", "ray")

NEEDS_TORCH = ("insitu.train", "insitu.engine.embedded", "insitu.engine.server")
"""Modules, with what is below them, that may import torch when they are loaded."""

LIGHT = ("insitu.train.client",)
"""Modules below those that may not."""


def _may_be_heavy(name: str) -> bool:
    below = any(name == n or name.startswith(f"{n}.") for n in NEEDS_TORCH)
    return below and name not in LIGHT


def test_heavy_packages_are_imported_where_they_are_needed_only():
    wrong = [
        f"{module.where(line)} imports {name}"
        for module in modules()
        if not _may_be_heavy(module.name)
        for name, line in module.top_imports()
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_is_not_used_lazily_outside_either():
    wrong = [
        f"{module.where(line)} imports {name}"
        for module in modules()
        if not _may_be_heavy(module.name)
        for name, line in module.imports()
        if name.split(".")[0] in HEAVY
        and not (module.room == "render" and name.split(".")[0] == "transformers")
    ]
    assert not wrong, "\n".join(wrong)


_BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
failed = []
for name in {names!r}:
    try:
        importlib.import_module(name)
    except BaseException as e:
        failed.append(f"{{name}}: {{type(e).__name__}}: {{e}}")
sys.exit("\\n".join(failed) or 0)
"""


def test_everything_else_loads_without_them():
    names = [m.name for m in modules() if not _may_be_heavy(m.name)]
    names = [name for name in names if not name.endswith(".__main__")]
    code = _BLOCKED.format(heavy=HEAVY, names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _cpu_seconds(arguments: list[str], tries: int = 3) -> float:
    """Least processor time of a few runs: on a busy machine the clock tells nothing."""
    best = float("inf")
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "COLUMNS": "100"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    return best


def test_importing_insitu_takes_under_100_ms():
    assert _cpu_seconds(["-c", "import insitu"]) < 0.1


def test_help_takes_under_300_ms():
    assert _cpu_seconds(["-c", "from insitu.cli.main import main; main()", "--help"]) < 0.3
