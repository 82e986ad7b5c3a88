"""A tiny package with tests of its own, and an environment made of the running one's pytest."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from insitu.tasks.environment import environment_name, site_packages

CODE = '''
"""Shapes."""


class Range:
    """A half-open range."""

    def __init__(self, start, stop):
        if start > stop:
            raise ValueError("start is after stop")
        self.start = start
        self.stop = stop

    def clip(self, value, strict=False):
        """Put `value` into the range."""
        if strict and (value < self.start or value >= self.stop):
            raise ValueError("outside")
        last = self.stop - 1
        return min(max(value, self.start), last)

    def split(self, count):
        """Cut it into `count` parts."""
        size, rest = divmod(self.stop - self.start, count)
        parts = []
        begin = self.start
        for i in range(count):
            end = begin + size + (1 if i < rest else 0)
            parts.append((begin, end))
            begin = end
        return parts


def chunks(items, size):
    """Slices of `items` with `size` elements each."""
    if size < 1:
        raise ValueError("size")
    found = []
    for at in range(0, len(items), size):
        found.append(items[at:at + size])
    return found
'''

TESTS = """
import pytest
from shapes import Range, chunks


def test_clip():
    r = Range(2, 8)
    assert r.clip(1) == 2
    assert r.clip(8) == 7
    assert r.clip(5) == 5


def test_clip_strict():
    assert Range(0, 4).clip(3, strict=True) == 3
    with pytest.raises(ValueError):
        Range(0, 4).clip(4, strict=True)


def test_split():
    assert Range(0, 7).split(3) == [(0, 3), (3, 5), (5, 7)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks(size):
    parts = chunks("abcde", size)
    assert "".join(parts) == "abcde"
    assert len(parts[0]) == size


def test_chunks_size():
    with pytest.raises(ValueError):
        chunks("abc", 0)
"""

PROJECT = """
[project]
name = "shapes"
version = "1.0"
license = "MIT"
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "shapes-repo"
    files = {
        "src/shapes/__init__.py": "from shapes.core import Range, chunks\n",
        "src/shapes/core.py": CODE,
        "tests/test_core.py": TESTS,
        "pyproject.toml": PROJECT,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def taskset(tmp_path: Path) -> Path:
    """A set folder whose environment is there already, so that nothing is downloaded."""
    folder = tmp_path / "set"
    env = folder / "envs" / environment_name(())
    packages = site_packages(env)
    packages.mkdir(parents=True)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        (packages / name).symlink_to(Path(import_module(name).__file__ or "").parent)
    (packages / "py.py").symlink_to(Path(pytest.__file__).parents[1] / "py.py")
    (env / "bin").mkdir()
    (env / "bin" / "python").symlink_to(sys.executable)
    return folder


def real_packages(env):
    """Copies instead of links, which would lead out of the sandbox."""
    for link in next(env.glob("lib/*/site-packages")).iterdir():
        target = link.resolve()
        link.unlink()
        if target.is_dir():
            shutil.copytree(target, link)
        else:
            shutil.copy(target, link)
