"""One name, one thing."""

import ast
from collections import defaultdict

from tests.arch.house import modules

FORBIDDEN = {
    "utils", "util", "common", "helpers", "helper", "experimental", "legacy", "misc", "manager",
    "managers",
}  # fmt: skip

ENTRY_POINT = "main"


def test_no_folder_or_file_for_leftovers():
    wrong = [m.where(1) for m in modules() if FORBIDDEN & set(m.name.split("."))]
    assert not wrong, "\n".join(wrong)


def test_a_public_name_is_defined_once_or_one_place_imports_the_other():
    places = defaultdict(list)
    for module in modules():
        for node in module.tree.body:
            kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, kinds) and not node.name.startswith("_"):
                places[node.name].append((module, node.lineno))
    wrong = []
    for name, found in places.items():
        if name == ENTRY_POINT or len(found) < 2:
            continue
        names = {module.name for module, _ in found}
        linked = any(
            imported.startswith(tuple(names - {module.name}))
            for module, _ in found
            for imported, _ in module.imports()
        )
        if not linked:
            wrong.append(f"{name}: {', '.join(m.where(line) for m, line in found)}")
    assert not wrong, "\n".join(wrong)
