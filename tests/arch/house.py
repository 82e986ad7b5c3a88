"""The source tree as the house rules see it: rooms, layers, modules, imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "insitu"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("types",),
    ("kit",),
    ("config",),
    ("ledger", "sandbox", "weights", "render"),
    ("tasks", "engine", "product", "reward", "corpus"),
    ("gateway", "train"),
    ("rollout",),
    ("evaluate", "audit", "online"),
    ("fleet", "flows"),
    ("cli", "dashboard"),
)
"""Lowest first; the first three are layer 0 of the design, which has an order of its own."""

LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

PARTNERS = {("flows", "fleet")}
"""Rooms of one layer of which the first may import the second: flows wires what fleet runs."""


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path

    @property
    def name(self) -> str:
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """Empty for `insitu/__init__.py`."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Dotted names imported anywhere in the file, with their lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)

    def top_imports(self) -> Iterator[tuple[str, int]]:
        """As `imports`, only those that run when the module is imported."""
        lazy = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            for inner in ast.walk(node)
        }
        for node in ast.walk(self.tree):
            if id(node) in lazy:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield self._base(node), node.lineno

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def where(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@lru_cache(maxsize=1)
def modules() -> tuple[Module, ...]:
    """Every module of the package."""
    return tuple(Module(path) for path in sorted(PACKAGE.rglob("*.py")))


def code_lines(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function that are neither blank nor its docstring."""
    lines = module.text.splitlines()
    skipped: set[int] = set()
    if ast.get_docstring(node, clean=False) is not None:
        doc = node.body[0]
        skipped = set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return sum(1 for n in numbers if n not in skipped and lines[n - 1].strip())
