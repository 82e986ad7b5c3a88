"""A file imports from lower layers only: never a sibling room, never upward; lazily or not."""

import ast
import re

import pytest

from tests.arch.house import LEVEL, PACKAGE, PARTNERS, modules

_TARGET = re.compile(r"^(insitu(?:\.\w+)+):\w+$")


def test_every_folder_is_a_room():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= LEVEL.keys()


@pytest.mark.parametrize("room", LEVEL)
def test_a_room_imports_lower_rooms_only(room):
    wrong = [
        f"{module.where(line)} imports {name}"
        for module in modules()
        if module.room == room
        for name, line in _targets(module)
        if _is_wrong(room, name)
    ]
    assert not wrong, "\n".join(wrong)


def _targets(module):
    """What it imports, and what its tables name to be imported when used."""
    yield from module.imports()
    for node in ast.walk(module.tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (found := _TARGET.match(text)):
            yield found[1], node.lineno


def _is_wrong(room: str, name: str) -> bool:
    parts = name.split(".")
    if parts[0] != "insitu" or len(parts) < 2 or parts[1] == room:
        return False
    if parts[1] not in LEVEL:  # `from insitu import __version__`
        return False
    return LEVEL[parts[1]] >= LEVEL[room] and (room, parts[1]) not in PARTNERS


def test_only_flows_and_entry_points_know_the_whole_config_tree():
    """Functions take values: that is what makes them useful in somebody else's loop."""
    allowed = ("config", "flows", "cli", "dashboard")
    wrong = [
        module.where(line)
        for module in modules()
        if module.room not in allowed and module.path.name != "server.py"
        for name, line in module.imports()
        if name.startswith(("insitu.config.tree", "insitu.config.load"))
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_export_nothing():
    """`__init__` files stay empty, so that importing one module does not import its room."""
    wrong = [
        str(module.path)
        for module in modules()
        if module.path.name == "__init__.py"
        and module.room != "types"
        and module.path.parent != PACKAGE
        and module.tree.body[1 if _has_docstring(module) else 0 :]
    ]
    assert not wrong, "\n".join(wrong)


def _has_docstring(module) -> bool:
    return ast.get_docstring(module.tree) is not None
