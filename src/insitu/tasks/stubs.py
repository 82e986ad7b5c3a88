"""A function's code without its file: what `swap` in `worker.py` compiles."""

import ast
from dataclasses import dataclass
from functools import lru_cache

from insitu.tasks.layout import layout_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class FunctionPlace:
    """Where a function stands, besides its lines."""

    begin: int
    """Line of its first decorator, or of `def`: where Python says that it begins."""
    body: int
    """Line of its first statement."""
    heads: tuple[str, ...]
    """Header lines that put it at its depth: its classes, and `if 1:` for other blocks."""


@lru_cache(maxsize=4096)
def locate(source: str, first_line: int) -> FunctionPlace:
    """Where the function whose `def` is on the line stands.

    Raises:
        LookupError: there is none.
    """
    heads: list[tuple[int, str]] = []
    node: ast.AST = layout_of(source).tree
    while not (isinstance(node, _FUNCTIONS) and node.lineno == first_line):
        node = _inner(node, first_line)
        if not isinstance(node, _FUNCTIONS):
            column = getattr(node, "col_offset", 0)
            # `elif` and `except` stand as deep as what they belong to: one of them will do.
            heads = [h for h in heads if h[0] < column]
            name = f"class {node.name}:" if isinstance(node, ast.ClassDef) else "if 1:"
            heads.append((column, " " * column + name))
    begin = min([first_line, *(d.lineno for d in node.decorator_list)])
    return FunctionPlace(begin, node.body[0].lineno, tuple(text for _, text in heads))


def _inner(node: ast.AST, line: int) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            first = child.body[0].lineno if isinstance(child, ast.match_case) else child.lineno
            last = (
                child.body[-1].end_lineno if isinstance(child, ast.match_case) else child.end_lineno
            )
            if first <= line <= (last or 0):
                return child
    raise LookupError(f"no function begins on line {line}")


def stub(source: str, changed: str, first_line: int, last_line: int) -> str:
    """Source that defines just the function as `changed` has it, on its own lines.

    Decorators are left out, since only the code is wanted; all the rest too, so that it
    compiles in a millisecond.

    Args:
        source: the file before the change, which says at what depth the function stands.
        changed: the file after it; with the same number of lines.
        first_line: the line of `def`.
        last_line: its last line.
    """
    heads = locate(source, first_line).heads
    lines = changed.split("\n")[first_line - 1 : last_line]
    return "\n" * (first_line - 1 - len(heads)) + "\n".join([*heads, *lines]) + "\n"
