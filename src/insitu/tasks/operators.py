"""The legal one-place replacements inside a function, by family, found on its syntax tree.

Every operator is closed under reversal: where it offers `a -> b`, it offers `b -> a` at the
same place of the changed source. Only then can a task set choose both directions equally
often, so that the kind of a repair says nothing about which repair is right.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from insitu.tasks.layout import Layout, Token

FAMILIES = (
    "comparison",
    "boolean",
    "arithmetic",
    "constant",
    "index_slice",
    "argument_order",
    "wrong_variable",
    "return",
    "exception_type",
    "call_pair",
    "loop",
    "attribute",
)


@dataclass(frozen=True, slots=True)
class Replacement:
    """Put `new` in place of characters `start` to `end` of line `line` (1-based)."""

    line: int
    start: int
    end: int
    new: str
    family: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What the operators know about the function."""

    layout: Layout
    function: ast.FunctionDef | ast.AsyncFunctionDef
    parents: dict[ast.AST, ast.AST]
    variables: tuple[str, ...]
    """Parameters and stored locals in order of appearance, without `self` and `cls`."""
    attributes: tuple[str, ...]
    """Attributes of `self` that the enclosing class stores, sorted."""


Operator = Callable[[Scope, ast.AST], Iterator[Replacement]]


def _pairs(text: str) -> dict[str, tuple[str, ...]]:
    """`"min max, a b c"` as a symmetric table: each of a group to each other of it."""
    table: dict[str, list[str]] = {}
    for group in text.split(","):
        names = group.split()
        for name in names:
            known = table.setdefault(name, [])
            known += [other for other in names if other != name and other not in known]
    return {name: tuple(others) for name, others in table.items()}


COMPARISONS = _pairs("< <= > >=, == !=, is is·not, in not·in")
ARITHMETIC = _pairs(
    "+ -, * /, / //, // %, * **, + *, & |, & ^, << >>, += -=, *= /=, //= /=, += *=, &= |="
)
WORDS = _pairs("True False None")
LOOP = _pairs("break continue pass")
EXCEPTIONS = _pairs(
    "ValueError TypeError KeyError IndexError, KeyError AttributeError, TypeError "
    "AttributeError, ValueError RuntimeError, TypeError RuntimeError, IndexError "
    "StopIteration, RuntimeError NotImplementedError, KeyError LookupError, IndexError "
    "LookupError, ZeroDivisionError ValueError, OverflowError ValueError, AttributeError "
    "NotImplementedError, TypeError NotImplementedError, OSError ValueError, StopIteration "
    "ValueError"
)
CALLS = _pairs(
    "min max, any all, append extend, keys values items, strip lstrip rstrip, startswith "
    "endswith, sorted list, sorted reversed, list tuple, list set, set frozenset, first last, "
    "upper lower, find rfind, index rindex, split rsplit, partition rpartition, add discard, "
    "remove discard, pop popleft, append appendleft, extend extendleft, get pop, get "
    "setdefault, floor ceil, isdigit isalpha, isinstance issubclass, int float, str repr, sum "
    "max, sum len, getattr hasattr, iter next, union intersection, ljust rjust, islower "
    "isupper, issubset issuperset, map filter, copy deepcopy, zip zip_longest, takewhile "
    "dropwhile, abs int, abs float, any bool, all bool, bisect_left bisect_right, lower "
    "title, lower capitalize, upper title, match search, match fullmatch, encode decode, "
    "replace strip, sin cos, setattr getattr, range list, dict list, difference intersection, "
    "update add, sub add, mul add, floor round, ceil round"
)
_LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.Constant, ast.Tuple)
"""What binds weaker than `not`, or is never worth negating."""
_STRINGS = {"''": "' '", '""': '" "', "' '": "''", '" "': '""'}


def _span(scope: Scope, node: ast.expr) -> tuple[int, int, int] | None:
    """Line, first and last character of a node that stands on one line."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return None
    line = node.lineno
    return (
        line,
        scope.layout.column(line, node.col_offset),
        scope.layout.column(line, node.end_col_offset),
    )


def _between(scope: Scope, left: ast.expr, right: ast.expr) -> list[Token]:
    """The tokens between two nodes, parentheses left out."""
    assert left.end_lineno is not None
    assert left.end_col_offset is not None
    first = (left.end_lineno, scope.layout.column(left.end_lineno, left.end_col_offset))
    last = (right.lineno, scope.layout.column(right.lineno, right.col_offset))
    return [t for t in scope.layout.between(first, last) if t.text not in "()"]


def _swap_token(token: Token, news: tuple[str, ...], family: str) -> Iterator[Replacement]:
    for new in news:
        yield Replacement(token.line, token.start, token.end, new, family)


def comparison(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """`<` to `<=`, `==` to `!=`, `is` to `is not`, `in` to `not in`, and so on."""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, right in pairwise(operands):
        tokens = _between(scope, left, right)
        if not tokens or tokens[0].line != tokens[-1].line:
            continue
        key = "·".join(t.text for t in tokens)
        for new in COMPARISONS.get(key, ()):
            text = new.replace("·", " ")
            yield Replacement(tokens[0].line, tokens[0].start, tokens[-1].end, text, "comparison")


def connective(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """`and` to `or` and back, one at a time."""
    if not isinstance(node, ast.BoolOp):
        return
    for left, right in pairwise(node.values):
        for token in _between(scope, left, right):
            if token.text in ("and", "or"):
                yield from _swap_token(token, ("or" if token.text == "and" else "and",), "boolean")


def _is_condition(scope: Scope, node: ast.expr) -> bool:
    parent = scope.parents.get(node)
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return node is parent.test
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, ast.BoolOp | ast.Return)


def negation(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """A condition with `not` dropped or put before it."""
    if not isinstance(node, ast.expr) or not _is_condition(scope, node):
        return
    line, start = node.lineno, _start(scope, node)
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        if not isinstance(node, _LOOSE):
            yield Replacement(line, start, start, "not ", "boolean")
        return
    operand = node.operand
    bare = operand.lineno == line and _start(scope, operand) == start + len("not ")
    doubled = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not)
    if bare and not doubled and not isinstance(operand, _LOOSE):
        yield Replacement(line, start, start + len("not "), "", "boolean")


def arithmetic(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """`+` to `-`, `*` to `/`, `+=` to `-=`, and so on."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        ):
            return  # string formatting: no number is computed here
        tokens = _between(scope, node.left, node.right)
    elif isinstance(node, ast.AugAssign):
        tokens = _between(scope, node.target, node.value)
    else:
        return
    if len(tokens) == 1:
        yield from _swap_token(tokens[0], ARITHMETIC.get(tokens[0].text, ()), "arithmetic")


def _is_negative(node: ast.AST | None) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _integers(value: int) -> list[int]:
    if value == -1:
        return [0, 1]
    near = [value + 1, value - 1]
    return [*near, -1] if value == 1 else near


def _number_site(scope: Scope, node: ast.AST) -> tuple[ast.expr, int] | None:
    """The whole literal, sign included, and its value; signs only before 1."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return None if _is_negative(scope.parents.get(node)) else (node, node.value)
    if (
        isinstance(node, ast.UnaryOp)
        and _is_negative(node)
        and isinstance(node.operand, ast.Constant)
        and node.operand.value == 1
        and type(node.operand.value) is int
    ):
        return node, -1
    return None


def _is_index(scope: Scope, node: ast.AST) -> bool:
    parent = scope.parents.get(node)
    return isinstance(parent, ast.Slice) or (
        isinstance(parent, ast.Subscript) and parent.slice is node
    )


def number(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """A small integer to a neighbour: 0 to 1, 1 to 2, 1 to -1, and so on."""
    site = _number_site(scope, node)
    where = _span(scope, site[0]) if site else None
    if site is None or where is None:
        return
    line, start, end = where
    if scope.layout.lines[line - 1][start:end] != str(site[1]):
        return  # 0x10, 1_000: written so for a reason
    computed = isinstance(scope.parents.get(site[0]), ast.BinOp)
    for value in _integers(site[1]):
        if computed and (value < 0 or site[1] < 0):
            continue  # `n - -1` is nothing that somebody writes
        family = "index_slice" if _is_index(scope, site[0]) else "constant"
        yield Replacement(line, start, end, str(value), family)


def word(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """True, False and None for each other; the empty string and one space."""
    if not isinstance(node, ast.Constant):
        return
    where = _span(scope, node)
    if where is None or isinstance(scope.parents.get(node), ast.Expr):
        return
    line, start, end = where
    text = scope.layout.lines[line - 1][start:end]
    news = WORDS.get(text, ()) or ((_STRINGS[text],) if text in _STRINGS else ())
    for new in news:
        yield Replacement(line, start, end, new, "constant")


def _slice_bounds(scope: Scope, node: ast.Slice) -> Iterator[Replacement]:
    """`[1:]` to `[:]`, `[:-1]` to `[:]`, and back."""
    whole = node.step is None
    for bound, text in ((node.lower, "1"), (node.upper if whole else None, "-1")):
        where = _span(scope, bound) if bound is not None else None
        if where and scope.layout.lines[where[0] - 1][where[1] : where[2]] == text:
            yield Replacement(*where, "", "index_slice")
    first = _span(scope, node) if node.lower is None else _span(scope, node.lower)
    if first is None:
        return
    line, after = first[0], first[1] if node.lower is None else first[2]
    colon = next(
        (t for t in scope.layout.on_line(line) if t.start >= after and t.text == ":"), None
    )
    if colon and node.lower is None:
        yield Replacement(line, colon.start, colon.start, "1", "index_slice")
    if colon and node.upper is None and whole:
        yield Replacement(line, colon.end, colon.end, "-1", "index_slice")


def _start(scope: Scope, node: ast.expr) -> int:
    return scope.layout.column(node.lineno, node.col_offset)


def _is_bound(scope: Scope, node: ast.AST) -> bool:
    """Whether an off-by-one is at home here: range arguments, slice bounds, computed indices."""
    parent = scope.parents.get(node)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id == "range" and node in parent.args
    return _is_index(scope, node)


def bounds(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """Off by one: `range(n)` to `range(n + 1)`, `x[i - 1]` to `x[i]`, `[1:]` to `[:]`."""
    if isinstance(node, ast.Slice):
        yield from _slice_bounds(scope, node)
        return
    if not isinstance(node, ast.expr) or not _is_bound(scope, node):
        return
    where = _span(scope, node)
    if where is None:
        return
    line, _, end = where
    if isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield Replacement(line, end, end, " + 1", "index_slice")
        yield Replacement(line, end, end, " - 1", "index_slice")
    elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name | ast.Attribute | ast.Call):
        inner = _span(scope, node.left)
        text = scope.layout.lines[line - 1]
        if inner and text[inner[2] : end] in (" + 1", " - 1"):
            yield Replacement(line, inner[2], end, "", "index_slice")


def order(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """Two adjacent plain arguments, or elements of a tuple that is read, swapped."""
    if isinstance(node, ast.Call):
        items = node.args
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        if isinstance(scope.parents.get(node), ast.ExceptHandler):
            return  # the order of exception classes does not matter
        items = node.elts
    else:
        return
    plain = (ast.Name, ast.Attribute, ast.Constant)
    for left, right in pairwise(items):
        first, second = _span(scope, left), _span(scope, right)
        if not (isinstance(left, plain) and isinstance(right, plain) and first and second):
            continue
        text = scope.layout.lines[first[0] - 1]
        if first[0] == second[0] and text[first[2] : second[1]] == ", ":
            new = f"{text[second[1] : second[2]]}, {text[first[1] : first[2]]}"
            yield Replacement(first[0], first[1], second[2], new, "argument_order")


def _near(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The names beside `name`; a symmetric relation, and few enough not to drown the rest."""
    if name not in names:
        return ()
    at = names.index(name)
    return names[max(0, at - 1) : at] + names[at + 1 : at + 2]


def variable(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """Another variable of the same function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        where = _span(scope, node)
        for new in _near(scope.variables, node.id):
            if where:
                yield Replacement(*where, new, "wrong_variable")


def attribute(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """Another attribute that the class stores."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
        return
    where = _span(scope, node)
    if where and isinstance(node.value, ast.Name) and node.value.id == "self":
        line, _, end = where
        for new in _near(scope.attributes, node.attr):
            yield Replacement(line, end - len(node.attr), end, new, "attribute")


def _keyword(scope: Scope, line: int, start: int, text: str) -> Token | None:
    return next(
        (t for t in scope.layout.on_line(line) if t.start == start and t.text == text), None
    )


def result(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """`return` dropped or added before a call; `return` and `yield` for each other."""
    if not isinstance(node, ast.Return | ast.Expr) or node.value is None:
        return
    line, start = node.lineno, scope.layout.column(node.lineno, node.col_offset)
    value = node.value
    if isinstance(node, ast.Return):
        token = _keyword(scope, line, start, "return")
        if token:
            yield from _swap_token(token, ("yield",), "return")
            if isinstance(value, ast.Call | ast.Await) and value.lineno == line:
                yield Replacement(line, start, _start(scope, value), "", "return")
    elif isinstance(value, ast.Yield) and value.value is not None:
        token = _keyword(scope, line, start, "yield")
        yield from _swap_token(token, ("return",), "return") if token else ()
    elif isinstance(value, ast.Call | ast.Await):
        yield Replacement(line, start, start, "return ", "return")


def exception(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """Another builtin exception in `raise` or `except`."""
    if not (isinstance(node, ast.Name) and node.id in EXCEPTIONS):
        return
    parent = scope.parents.get(node)
    if isinstance(parent, ast.Tuple):
        parent = scope.parents.get(parent)
    if isinstance(parent, ast.Call) and parent.func is node:
        parent = scope.parents.get(parent)
    where = _span(scope, node)
    if isinstance(parent, ast.Raise | ast.ExceptHandler) and where:
        for new in EXCEPTIONS[node.id]:
            yield Replacement(*where, new, "exception_type")


def call(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """A function or method for its counterpart: min and max, append and extend."""
    if not isinstance(node, ast.Call):
        return
    name = node.func
    where = _span(scope, name)
    if isinstance(name, ast.Name) and where:
        text, start = name.id, where[1]
    elif isinstance(name, ast.Attribute) and name.end_col_offset is not None:
        assert name.end_lineno is not None
        end = scope.layout.column(name.end_lineno, name.end_col_offset)
        text, start = name.attr, end - len(name.attr)
        where = (name.end_lineno, start, end)
    else:
        return
    for new in CALLS.get(text, ()):
        yield Replacement(where[0], start, where[2], new, "call_pair")


def loop(scope: Scope, node: ast.AST) -> Iterator[Replacement]:
    """`break`, `continue` and `pass` for each other, inside a loop."""
    if isinstance(node, ast.Break | ast.Continue | ast.Pass):
        start = scope.layout.column(node.lineno, node.col_offset)
        text = type(node).__name__.lower()
        for new in LOOP[text]:
            yield Replacement(node.lineno, start, start + len(text), new, "loop")


OPERATORS: tuple[Operator, ...] = (
    comparison,
    connective,
    negation,
    arithmetic,
    number,
    word,
    bounds,
    order,
    exception,
    call,
    result,
    loop,
    attribute,
    variable,
)
