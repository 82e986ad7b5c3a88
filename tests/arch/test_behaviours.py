"""Behaviours are small protocols; their implementations stand in literal tables."""

import ast
import re
import tomllib
from collections.abc import Iterator

from tests.arch.house import PACKAGE, ROOT, Module, modules

MOST_METHODS = 8

_TARGET = re.compile(r"^insitu(\.\w+)+:\w+$")


def _protocols(module: Module) -> Iterator[ast.ClassDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(b) for b in node.bases):
            yield node


def test_a_protocol_has_at_most_eight_methods():
    wrong = []
    for module in modules():
        for protocol in _protocols(module):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            methods = [n for n in protocol.body if isinstance(n, kinds)]
            if len(methods) > MOST_METHODS:
                wrong.append(f"{module.where(protocol.lineno)} {protocol.name}: {len(methods)}")
    assert not wrong, "\n".join(wrong)


def _tables() -> Iterator[tuple[Module, str, list[tuple[str, str]]]]:
    """Module, table's name, and its entries (target, extra)."""
    for module in modules():
        for node in module.tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if not isinstance(value, ast.Dict):
                continue
            texts = [
                [c.value for c in ast.walk(v) if isinstance(c, ast.Constant)] for v in value.values
            ]
            if texts and all(t and isinstance(t[0], str) and _TARGET.match(t[0]) for t in texts):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                entries = [(t[0], t[1] if len(t) > 1 else "") for t in texts]
                yield module, ast.unparse(target), entries


def test_rooms_with_a_protocol_in_base_list_their_implementations():
    bases = [m for m in modules() if m.path.name == "base.py" and list(_protocols(m))]
    rooms = {module.room for module, _, _ in _tables()}
    assert {"sandbox", "engine"} <= {m.room for m in bases}
    missing = sorted({m.room for m in bases} - rooms)
    assert not missing, f"no table of implementations in {', '.join(missing)}"


def test_tables_name_what_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wrong = []
    for module, table, entries in _tables():
        for target, extra in entries:
            name, _, attribute = target.partition(":")
            path = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
            found = path.is_file() and re.search(
                rf"^(class|def) {attribute}\b", path.read_text(), re.MULTILINE
            )
            if not found:
                wrong.append(f"{module.where(1)} {table}: no {target}")
            if extra and extra not in extras:
                wrong.append(f"{module.where(1)} {table}: no extra {extra}")
    assert not wrong, "\n".join(wrong)
