"""The declared combination of signals: a small arithmetic expression, evaluated safely."""

import ast
import difflib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from insitu.types import ConfigError, Reward, Signal

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max}
_LONGEST = 1000
_HIGHEST_POWER = 16.0
_REMEDY = "use numbers, signal names, + - * / **, comparisons, min(…), max(…)"


def evaluate(formula: str, signals: Sequence[Signal]) -> Reward:
    """The reward that `formula` gives for an episode's signals.

    Comparisons give 1.0 or 0.0. Example: `evaluate("passed - 0.01 * calls", signals)`.

    Raises:
        ConfigError: it is not such an expression, names no known signal, or gives no number.
    """
    tree = _parse(formula)
    values = {s.name: float(s.value) for s in signals}
    try:
        value = _value(tree, values, formula)
    except (ZeroDivisionError, OverflowError) as e:
        raise ConfigError(
            f"the reward {formula!r} cannot be computed for {values}: {e}",
            remedy="guard the divisor, e.g. with max(1, …)",
        ) from e
    if not isinstance(value, float) or not math.isfinite(value):
        raise ConfigError(f"the reward {formula!r} gives {value}, no finite number", remedy=_REMEDY)
    return Reward(value=value, formula=formula)


def names(formula: str) -> frozenset[str]:
    """The signal names that the formula uses.

    Raises:
        ConfigError: it is not an expression.
    """
    found = {n.id for n in ast.walk(_parse(formula)) if isinstance(n, ast.Name)}
    return frozenset(found - set(_FUNCTIONS))


@lru_cache(maxsize=64)
def _parse(formula: str) -> ast.expr:
    if len(formula) > _LONGEST:
        raise ConfigError(f"the reward is longer than {_LONGEST} characters", remedy=_REMEDY)
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ConfigError(f"the reward {formula!r} is no expression: {e}", remedy=_REMEDY) from e


def _value(node: ast.expr, values: Mapping[str, float], formula: str) -> float:
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return _lookup(name, values, formula)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=inner):
            value = _value(inner, values, formula)
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left, values, formula), _value(right, values, formula)
            return _binary(op, a, b, formula)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare(left, ops, others, values, formula)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in _FUNCTIONS and args
        ):
            return float(_FUNCTIONS[name]([_value(a, values, formula) for a in args]))
    raise ConfigError(
        f"the reward {formula!r} has a part that is not allowed: {ast.unparse(node)}",
        remedy=_REMEDY,
    )


def _binary(op: ast.operator, a: float, b: float, formula: str) -> float:
    if isinstance(op, ast.Pow) and abs(b) > _HIGHEST_POWER:
        raise ConfigError(f"the reward {formula!r} has a power of {b:g}", remedy="at most 16")
    result = _BINARY[type(op)](a, b)
    if isinstance(result, complex):
        raise ConfigError(
            f"the reward {formula!r} takes a root of the negative number {a:g}",
            remedy="guard it with max(0, …)",
        )
    return result


def _compare(
    left: ast.expr,
    ops: Sequence[ast.cmpop],
    others: Sequence[ast.expr],
    values: Mapping[str, float],
    formula: str,
) -> float:
    a = _value(left, values, formula)
    for op, other in zip(ops, others, strict=True):
        if type(op) not in _COMPARE:
            raise ConfigError(f"the reward {formula!r} has `in` or `is`", remedy=_REMEDY)
        b = _value(other, values, formula)
        if not _COMPARE[type(op)](a, b):
            return 0.0
        a = b
    return 1.0


def _lookup(name: str, values: Mapping[str, float], formula: str) -> float:
    if name in values:
        return values[name]
    near = difflib.get_close_matches(name, values, 1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? Otherwise, " if near else ""
    raise ConfigError(
        f"the reward {formula!r} names the unknown signal {name!r}",
        remedy=f"{hint}known are: {', '.join(sorted(values))}",
    )
