"""Functions that are the same but for names, comments and annotations."""

import ast
from functools import lru_cache

from insitu.kit.digest import digest_bytes
from insitu.tasks.mutate import FunctionNode, definitions

_SMALLEST = 18
"""Syntax-tree nodes; smaller functions are alike by nature."""
_NOT_CODE = frozenset(
    ("annotation", "returns", "decorator_list", "type_comment", "type_params", "ctx", "kind")
)


@lru_cache(maxsize=512)
def fingerprints(source: str) -> dict[tuple[str, int], str]:
    """By qualified name and line, the digest of each function's normalised syntax tree.

    Docstrings, decorators, annotations and the names of parameters and locals do not count.
    Functions of fewer than 18 nodes are left out.

    Raises:
        SyntaxError: the source is not Python.
    """
    found = {}
    for name, node, _ in definitions(ast.parse(source)):
        parts: list[str] = []
        if _write(node, parts, _Names(node)) >= _SMALLEST:
            found[name, node.lineno] = digest_bytes("\0".join(parts).encode(errors="replace"))
    return found


class _Names:
    """Numbers for the names that belong to a function, in order of use."""

    def __init__(self, function: FunctionNode) -> None:
        self._own = {function.name}
        self._numbers: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.arg):
                self._own.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._own.add(node.id)

    def short(self, name: str) -> str:
        if name not in self._own:
            return name
        return self._numbers.setdefault(name, f"v{len(self._numbers)}")


def _write(node: ast.AST, parts: list[str], names: _Names) -> int:
    """Append what counts about a tree to `parts`; the number of its nodes."""
    parts.append(type(node).__name__)
    count = 1
    if isinstance(node, ast.Name):
        parts.append(names.short(node.id))
        return count
    if isinstance(node, ast.arg):
        parts.append(names.short(node.arg))
        return count
    if isinstance(node, ast.Constant):
        parts.append(repr(node.value))
        return count
    for field in node._fields:
        if field in _NOT_CODE:
            continue
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            count += _write(value, parts, names)
        elif isinstance(value, list):
            parts.append(f"[{field}")
            for item in value[_docstring(node, field) :]:
                if isinstance(item, ast.AST):
                    count += _write(item, parts, names)
                else:
                    parts.append(str(item))
        elif value is not None:
            inner = isinstance(node, FunctionNode) and field == "name"
            parts.append(names.short(value) if inner else str(value))
    return count


def _docstring(node: ast.AST, field: str) -> int:
    """1 where the list begins with a docstring, else 0."""
    if field != "body" or not isinstance(node, FunctionNode) or not node.body:
        return 0
    first = node.body[0]
    return int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
