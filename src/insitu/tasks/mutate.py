"""All legal one-place edits inside one function, and how to apply and reverse them.

Standard library only. An edit is written as short as it can be so that its `old` text is the
first occurrence in its line and its `new` text the first occurrence in the changed line: the
same edit can then be made, and undone, by a tool that knows only line, old and new.
"""

import ast
import re
import warnings
from collections.abc import Iterator

from insitu.tasks.layout import Layout, layout_of
from insitu.tasks.operators import OPERATORS, Replacement, Scope
from insitu.types import Edit, TaskError

_LONGEST = 60
_REACH = 6
_TOKEN = re.compile(r"\w+|\s+|<<=|>>=|\*\*=|//=|[<>=!+\-*/%&|^]=|<<|>>|\*\*|//|[^\w\s]")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def list_functions(source: str) -> list[tuple[str, int, int]]:
    """Qualified name, line of `def` and last line of each function and method.

    A function inside a function belongs to the outer one and is not listed.

    Raises:
        SyntaxError: the source is not Python.
    """
    return [
        (name, node.lineno, node.end_lineno or node.lineno)
        for name, node, _ in definitions(layout_of(source).tree)
    ]


def candidate_edits(
    source: str, path: str, first_line: int, last_line: int
) -> list[tuple[Edit, str]]:
    """Every legal edit of the function that spans the lines, with its family.

    In order of line and column; no two give the same text; each result compiles and differs
    from the source as a syntax tree.

    Raises:
        SyntaxError: the source is not Python.
        TaskError: no function spans these lines.
    """
    layout = layout_of(source)
    scope = _scope(layout, path, first_line, last_line)
    check = _Check(layout, first_line, last_line)
    found: dict[tuple[int, str], tuple[Edit, str]] = {}
    for replacement in _replacements(scope):
        changed = _changed(layout, replacement)
        key = (replacement.line, changed)
        if key in found or not check.accepts(replacement.line, changed):
            continue
        edit = _shortest(layout, path, replacement, changed)
        if edit is not None:
            found[key] = (edit, replacement.family)
    return sorted(found.values(), key=lambda e: (e[0].line, e[0].column, e[0].new))


def apply_edit(source: str, edit: Edit) -> str:
    """The source after the edit.

    Raises:
        TaskError: `old` does not stand there.
    """
    lines = source.split("\n")
    text = lines[edit.line - 1] if 0 < edit.line <= len(lines) else ""
    at = edit.column if edit.column >= 0 else text.find(edit.old)
    if at < 0 or not edit.old or not text.startswith(edit.old, at):
        raise TaskError(
            f"{edit.path}:{edit.line} does not contain {edit.old!r}"
            + (f" at character {edit.column}" if edit.column >= 0 else ""),
            remedy="rebuild the task: its base has changed",
        )
    lines[edit.line - 1] = text[:at] + edit.new + text[at + len(edit.old) :]
    return "\n".join(lines)


def reverse(edit: Edit) -> Edit:
    """The edit that takes this one back."""
    return Edit(path=edit.path, line=edit.line, old=edit.new, new=edit.old, column=edit.column)


def core(edit: Edit, family: str = "") -> tuple[str, str]:
    """What really changes: `old` and `new` without the tokens they share at either end.

    Names of variables and attributes and swapped arguments say nothing about a kind of change;
    they come back as `("<name>", "<other>")`. Example: `a < b` to `a <= b` is `("<", "<=")`.
    """
    if family in ("wrong_variable", "attribute", "argument_order"):
        return "<name>", "<other>"
    old, new = _TOKEN.findall(edit.old), _TOKEN.findall(edit.new)
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return "".join(old).strip(), "".join(new).strip()


def definitions(
    node: ast.AST, prefix: str = "", owner: ast.ClassDef | None = None
) -> Iterator[tuple[str, FunctionNode, ast.ClassDef | None]]:
    """Qualified name, syntax tree and class of each function and method below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield prefix + child.name, child, owner
        elif isinstance(child, ast.ClassDef):
            yield from definitions(child, f"{prefix}{child.name}.", child)
        elif not isinstance(child, ast.expr):
            yield from definitions(child, prefix, owner)


def _scope(layout: Layout, path: str, first_line: int, last_line: int) -> Scope:
    for _, node, owner in definitions(layout.tree):
        if (node.lineno, node.end_lineno) == (first_line, last_line):
            parents = {c: p for p in ast.walk(node) for c in ast.iter_child_nodes(p)}
            return Scope(layout, node, parents, _variables(node), _attributes(owner))
    raise TaskError(f"{path}: no function on lines {first_line} to {last_line}")


def _variables(function: FunctionNode) -> tuple[str, ...]:
    """Parameters, then names that are stored, by position; loads do not count (see `operators`)."""
    found: dict[str, tuple[int, int]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.setdefault(node.arg, (node.lineno, node.col_offset))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            at = (node.lineno, node.col_offset)
            found[node.id] = min(at, found.get(node.id, at))
    return tuple(n for n in sorted(found, key=lambda n: found[n]) if n not in ("self", "cls", "_"))


def _attributes(owner: ast.ClassDef | None) -> tuple[str, ...]:
    """Attributes of `self` that the class stores; a class inside it has a `self` of its own."""
    found: set[str] = set()
    todo: list[ast.AST] = list(owner.body) if owner else []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ClassDef):
            continue
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            found.add(node.attr)
        todo += ast.iter_child_nodes(node)
    return tuple(sorted(found))


def _inside(function: FunctionNode) -> Iterator[ast.AST]:
    """Nodes where an edit is at home: no decorators, annotations, f-strings or docstrings."""
    todo: list[ast.AST] = [*function.body, function.args]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment", "type_params"):
                continue
            todo += [v for v in (value if isinstance(value, list) else [value]) if _is_node(v)]


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST)


def _replacements(scope: Scope) -> Iterator[Replacement]:
    nodes = list(_inside(scope.function))
    for operator in OPERATORS:
        for node in nodes:
            yield from operator(scope, node)


def _changed(layout: Layout, r: Replacement) -> str:
    text = layout.lines[r.line - 1]
    return text[: r.start] + r.new + text[r.end :]


class _Check:
    """Whether the function still compiles, and as something else, with one line changed.

    Only the function is compiled: that is exact, since no edit reaches past its lines, and
    a hundred times faster than the whole file.
    """

    def __init__(self, layout: Layout, first_line: int, last_line: int) -> None:
        self._lines = layout.lines[first_line - 1 : last_line]
        self._first = first_line
        self._head = "if 1:\n" if self._lines[0][:1] in " \t" else ""
        # `nonlocal` and `__class__` do not compile on their own; then the grammar must do.
        self._compiles = False
        self._before = self._shape(self._lines)
        self._compiles = self._shape(self._lines, compiles=True) is not None

    def accepts(self, line: int, changed: str) -> bool:
        lines = list(self._lines)
        lines[line - self._first] = changed
        shape = self._shape(lines, compiles=self._compiles)
        return shape is not None and shape != self._before

    def _shape(self, lines: list[str], *, compiles: bool = False) -> str | None:
        """The syntax tree as text; None where it is none, or does not compile."""
        text = self._head + "\n".join(lines) + "\n"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(text)
                shape = ast.dump(tree)
                if compiles:
                    compile(tree, "<function>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                return None
        return shape


def _shortest(layout: Layout, path: str, r: Replacement, changed: str) -> Edit | None:
    """The edit with the fewest neighbouring tokens that is unambiguous in both directions."""
    text = layout.lines[r.line - 1]
    tokens = layout.on_line(r.line)
    lefts = [r.start, *[t.start for t in reversed(tokens) if t.end <= r.start][:_REACH]]
    rights = [r.end, *[t.end for t in tokens if t.start >= r.end][:_REACH]]
    sizes = sorted(
        ((i + j, i, left, right) for i, left in enumerate(lefts) for j, right in enumerate(rights))
    )
    for _, _, left, right in sizes:
        old = text[left:right]
        new = text[left : r.start] + r.new + text[r.end : right]
        if (
            _presentable(old)
            and _presentable(new)
            and text.find(old) == left
            and changed.find(new) == left
        ):
            return Edit(path=path, line=r.line, old=old, new=new, column=left)
    return None


def _presentable(text: str) -> bool:
    return bool(text) and text == text.strip() and len(text) <= _LONGEST
