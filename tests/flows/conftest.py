"""A product, a task set and a tiny random policy: everything that a real loop needs."""

import shutil
import sys
from pathlib import Path

import pytest

from insitu.tasks.build import BuildSpec, build_taskset
from insitu.tasks.environment import environment_name, site_packages
from insitu.tasks.source import PackageSpec
from tests.pocket import make_model
from tests.unit.tasks import conftest as tasks

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few tasks of a tiny package; its environment is copied from this one's pytest."""
    folder = tmp_path_factory.mktemp("set")
    packages = site_packages(folder / "envs" / environment_name(()))
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        source = Path(sys.modules[name].__file__ or "").parent
        shutil.copytree(source, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(pytest.__file__).parents[1] / "py.py", packages)
    shutil.copy2(Path(sys.modules["_pytest"].__file__ or "").parents[1] / "py.py", packages)
    (packages.parents[2] / "bin").mkdir()
    (packages.parents[2] / "bin" / "python").symlink_to(sys.executable)
    package = tasks.package.__wrapped__(tmp_path_factory.mktemp("package"))
    spec = BuildSpec(
        folder=folder,
        packages=(PackageSpec(source=str(package)),),
        count=4,
        workers=1,
        tries=4,
        fewest_edits=8,
        per_function=4,
    )
    build_taskset(spec)
    return folder


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("policy"), layers=2, hidden=32, context=2048)


@pytest.fixture
def recipe(tmp_path: Path, taskset: Path, policy: Path) -> Path:
    """Three steps of two episodes each; a random policy says nothing sensible in them."""
    path = tmp_path / "recipe.toml"
    path.write_text(f"""
[run]
name = "r"
folder = "{tmp_path}"
seed = 3
[policy]
model = "{policy}"
[product]
file = "{REPOSITORY}/examples/mender/product.toml"
[tasks]
train = "{taskset}"
[engine]
slots = 8
[gateway]
max_tokens = 12
max_calls = 3
[rollout]
in_flight = 4
[rl]
group_size = 2
groups_per_step = 1
steps = 3
staleness = 1
skip_groups_without_signal = false
checkpoint_every = 2
[reward]
formula = "passed - 0.01 * sampled_tokens"
[train]
lr = 1e-3
""")
    return path
