"""Functions that are the same but for names, comments and annotations."""

import ast
from functools import lru_cache

from insitu.kit.digest import digest_bytes
from insitu.tasks.layout import layout_of
from insitu.tasks.mutate import functions

_SMALLEST = 25
"""Syntax-tree nodes; smaller functions are alike by nature."""


class _Normal(ast.NodeTransformer):
    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        stored = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        names = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)} | stored
        self._local = names | {function.name}
        self._names: dict[str, str] = {}

    def _short(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}") if name in self._local else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._short(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._short(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        name, args = self._short(node.name), self.visit(node.args)
        plain = [self.visit(s) for s in body] or [ast.Pass()]
        return type(node)(name=name, args=args, body=plain, decorator_list=[], returns=None)


@lru_cache(maxsize=512)
def fingerprints(source: str) -> dict[tuple[str, int], str]:
    """By qualified name and line, the digest of each function's normalised syntax tree.

    Docstrings, decorators, annotations and the names of parameters and locals do not count.
    Functions of fewer than 25 nodes are left out.

    Raises:
        SyntaxError: the source is not Python.
    """
    tree = layout_of(source).tree
    nodes = {
        (n.lineno, n.end_lineno): n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found = {}
    for name, first, last in functions(source):
        node = nodes[first, last]
        if sum(1 for _ in ast.walk(node)) >= _SMALLEST:
            # A copy: the tree is shared with the layout.
            fresh = ast.parse(ast.unparse(node)).body[0]
            assert isinstance(fresh, ast.FunctionDef | ast.AsyncFunctionDef)
            dump = ast.dump(_Normal(fresh).visit(fresh))
            found[name, first] = digest_bytes(dump.encode())
    return found
