"""Configuration, dependencies and files of the repository as a whole."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from insitu.config.check import keys
from insitu.config.load import load
from insitu.config.tree import Config
from tests.arch.house import ROOT, modules

MOST_KEYS = 150
MOST_DEPENDENCIES = 14

# Written in pieces, because this file is checked as well.
_MACHINE = re.compile(
    "|".join(("/" + "work/", "/" + "opt/dev", "/" + r"Users/\w", r"C:\\" + "Users"))
)

_TOML = [p for folder in ("recipes", "docs") for p in sorted((ROOT / folder).rglob("*.toml"))]
_FENCE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _files() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    try:
        listed = subprocess.run(
            [*command, "--exclude-standard"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout")
    files = [ROOT / name for name in listed.split("\0") if name]
    return [f for f in files if f.is_file() and not f.is_symlink()]


def test_the_config_tree_stays_small():
    assert len(list(keys(Config))) <= MOST_KEYS


def test_every_key_is_read_somewhere():
    """A key that nothing reads is a promise that nobody keeps."""
    code = "\n".join(m.text for m in modules() if m.room != "config")
    # Tables that are handed on whole, as `Spec(**table.model_dump())`.
    handed_on = ("build.packages.", "midtrain.shape.")
    unread = [
        key
        for key in keys(Config)
        if not key.startswith(handed_on) and not re.search(rf"\.{key.rpartition('.')[2]}\b", code)
    ]
    assert not unread, unread


@pytest.mark.parametrize("path", _TOML, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_recipe_parses(path):
    load(path)


def test_every_toml_in_the_docs_parses():
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for page in pages:
        for block in _FENCE.findall(page.read_text(encoding="utf-8")):
            tomllib.loads(block)


def test_few_required_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9_.-]", d)[0] for d in project["dependencies"]}
    assert len(names) <= MOST_DEPENDENCIES, sorted(names)


def test_no_file_names_a_machine():
    wrong = []
    for path in _files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {found[0]}" for found in _MACHINE.finditer(text)]
    assert not wrong, "\n".join(wrong)


def test_the_licence_is_there():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert (ROOT / "NOTICE").is_file()
