"""Functions of a corpus: cut out, compared, deduplicated, and checked against held-out code."""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from insitu.corpus.documents import Document

_WORD = re.compile(r"\w+|[^\w\s]")
_SHINGLE = 5
_BANDS, _ROWS = 5, 4
_PRIME = (1 << 61) - 1

_Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """One function or method of a document.

    Example: `Function(document=d, name="Graph.copy", first=12, last=20, digest="5a…", shape="91…")`.
    """

    document: Document
    name: str
    """Qualified by its classes."""
    first: int
    """1-based line of `def`."""
    last: int
    digest: str
    """Of the syntax tree without docstring and positions: equal for equal code."""
    shape: str
    """Of the tree with every name blanked: equal also for renamed copies."""

    text: str
    """The lines from `def` to the end, as they stand."""
    attributes: tuple[str, ...] = ()
    """What its class stores on `self`, sorted; empty for a plain function."""

    @property
    def standalone(self) -> tuple[str, int, int]:
        """A small source that holds the function in a class like its own, and its lines there."""
        if not self.text[:1].isspace():
            return self.text + "\n", 1, self.last - self.first + 1
        indent = self.text[: len(self.text) - len(self.text.lstrip())]
        stores = "".join(f"\n{indent}    self.{name} = 0" for name in self.attributes)
        rest = f"\n{indent}def _(self):{stores}\n" if stores else "\n"
        return f"class _C:\n{self.text}{rest}", 2, self.last - self.first + 2


def functions(document: Document) -> list[Function]:
    """The functions and methods of a document that are not inside other functions.

    Code that this Python cannot parse gives an empty list.
    """
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    lines = document.text.split("\n")
    return [
        Function(
            document=document,
            name=name,
            first=node.lineno,
            last=node.end_lineno or node.lineno,
            digest=_digest(node, blank=False),
            shape=_digest(node, blank=True),
            text="\n".join(lines[node.lineno - 1 : node.end_lineno]),
            attributes=_stored(owner),
        )
        for name, node, owner in _definitions(tree, "", None)
    ]


class Unseen:
    """Lets each function pass once: exact copies, renamed copies and near copies are refused.

    Near means an estimated Jaccard similarity of token 5-grams of about 0.7 or more (MinHash of
    20 values in 5 bands of 4; Broder 1997).
    """

    def __init__(self, forbidden: Iterable[Function] = ()) -> None:
        self._exact: set[str] = set()
        self._bands: set[tuple[int, bytes]] = set()
        rng = np.random.default_rng(0)
        self._a = rng.integers(1, 1 << 31, size=_BANDS * _ROWS, dtype=np.uint64)
        self._b = rng.integers(0, 1 << 31, size=_BANDS * _ROWS, dtype=np.uint64)
        for function in forbidden:
            self.refusal(function)

    def refusal(self, function: Function) -> str | None:
        """Why it is refused (`copy`, `renamed copy`, `near copy`), or None; then it is remembered."""
        if function.digest in self._exact:
            return "copy"
        if function.shape in self._exact:
            return "renamed copy"
        bands = list(self._signature(function.text))
        if any(band in self._bands for band in bands):
            return "near copy"
        self._exact |= {function.digest, function.shape}
        self._bands.update(bands)
        return None

    def _signature(self, text: str) -> Iterator[tuple[int, bytes]]:
        words = _WORD.findall(text)
        shingles = {
            " ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))
        }
        raw = [
            int.from_bytes(hashlib.blake2b(s.encode(), digest_size=4).digest(), "little")
            for s in shingles
        ]
        values = np.array(raw, dtype=np.uint64)[:, None]
        smallest = ((values * self._a + self._b) % np.uint64(_PRIME)).min(axis=0)
        for band in range(_BANDS):
            yield band, smallest[band * _ROWS : (band + 1) * _ROWS].tobytes()


def _definitions(
    node: ast.AST, prefix: str, owner: ast.ClassDef | None
) -> Iterator[tuple[str, _Definition, ast.ClassDef | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            yield prefix + child.name, child, owner
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.", child)
        elif not isinstance(child, ast.expr):
            yield from _definitions(child, prefix, owner)


def _stored(owner: ast.ClassDef | None) -> tuple[str, ...]:
    nodes = [n for n in ast.walk(owner) if isinstance(n, ast.Attribute)] if owner else []
    return tuple(
        sorted(
            {
                n.attr
                for n in nodes
                if isinstance(n.ctx, ast.Store)
                and isinstance(n.value, ast.Name)
                and n.value.id == "self"
            }
        )
    )


def _digest(node: _Definition, *, blank: bool) -> str:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    parts = [ast.dump(node.args), *(ast.dump(statement) for statement in body)]
    text = "\n".join(parts)
    if blank:
        text = re.sub(r"\b(id|arg|attr|name)='[^']*'", r"\1=''", text)
    else:
        text = f"{node.name}\n{text}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
