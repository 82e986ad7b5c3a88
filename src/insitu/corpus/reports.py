"""Made-up test reports for bugs in functions without tests, in the product's form.

A report names the failing test, the frames inside the repository as `path:line source`, and the
error. What matters is the relation that real reports have to the bug: some kinds of bug mostly
raise where they stand, and then the last frame is their line and the message often holds the wrong
word; others come out later in the function, or only as a wrong value in the test.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from insitu.types import Edit

RAISES = {
    "argument_order": 0.75,
    "arithmetic": 0.55,
    "attribute": 0.80,
    "boolean": 0.08,
    "call_pair": 0.80,
    "comparison": 0.10,
    "constant": 0.15,
    "exception_type": 0.55,
    "index_slice": 0.65,
    "wrong_variable": 0.70,
}
"""How often a bug of a family raises in its own line; somewhat more often than in the recorded
sessions (e.g. argument_order 56 %, call_pair 70 %, comparison 1 %), so that reading is learnt."""
_LATER = 0.3
"""Share of the other reports whose last frame is another line of the function."""

_WORD = re.compile(r"[A-Za-z_]\w+")
_TYPES = ("int", "str", "list", "dict", "NoneType", "tuple", "set", "function", "bytes", "bool")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenFunction:
    """What a report is made up about."""

    name: str
    path: str
    first: int
    lines: Sequence[str]
    """Of the function with the bug, from line `first` on."""
    test: str
    bug: Edit
    family: str


def made_up_report(broken: BrokenFunction, rng: random.Random) -> str:
    """The report of the failing test, as the product would show it.

    Example: `failed: tests/test_a.py::test_f`, `tests/test_a.py:31 assert f(x) == y`,
    `a.py:12 return x.add(1)`, `AttributeError: 'list' object has no attribute 'add'`.
    """
    raises = rng.random() < RAISES.get(broken.family, 0.1)
    frames = [_test_frame(broken, rng)]
    if rng.random() < 0.2:
        frames.append(f"{broken.path}:{rng.randint(1, 3000)} return {_call(broken, rng)}")
    if raises:
        frames.append(_frame(broken, broken.bug.line))
    elif rng.random() < _LATER:
        later = [
            n
            for n, text in enumerate(broken.lines, broken.first)
            if n > broken.bug.line and _WORD.search(text) and not text.strip().startswith("#")
        ]
        frames += [_frame(broken, rng.choice(later))] if later else []
    inside = frames[-1].startswith(broken.path)
    error = _error(broken, rng, at_bug=raises) if inside else _mismatch(rng)
    return "\n".join([f"failed: {broken.test}", *frames, error])


def _frame(broken: BrokenFunction, line: int) -> str:
    return f"{broken.path}:{line} {broken.lines[line - broken.first].strip()}"


def _call(broken: BrokenFunction, rng: random.Random) -> str:
    bare = broken.name.split(".")[-1]
    owner = rng.choice(("obj.", "self.", "x.")) if "." in broken.name else ""
    given = ", ".join(_value(rng) for _ in range(rng.randint(1, 3)))
    return f"{owner}{bare}({given})"


def _test_frame(broken: BrokenFunction, rng: random.Random) -> str:
    file = broken.test.split("::", maxsplit=1)[0]
    call = _call(broken, rng)
    text = rng.choice(
        (
            f"assert {call} == {_value(rng)}",
            f"assert {call} == expected",
            f"self.assertEqual({call}, {_value(rng)})",
            f"result = {call}",
            f"eq_({call}, {_value(rng)})",
            f"for x in {call}:",
        )
    )
    return f"{file}:{rng.randint(8, 900)} {text}"


def _value(rng: random.Random) -> str:
    return rng.choice(
        (
            str(rng.randint(0, 20)),
            f"[{rng.randint(0, 9)}, {rng.randint(0, 9)}]",
            f"'{rng.choice('abcdefg')}'",
            "None",
            "[]",
            "x",
            "data",
            f"{{'{rng.choice('abc')}': {rng.randint(0, 9)}}}",
            f"({rng.randint(0, 9)}, {rng.randint(0, 9)})",
        )
    )


def _mismatch(rng: random.Random) -> str:
    got, wanted = _value(rng), _value(rng)
    return rng.choice(
        (
            f"AssertionError: assert {got} == {wanted}",
            f"AssertionError: {got} != {wanted}",
            f"AssertionError: assert {got} == {wanted}\n  \n  Full diff:",
            "AssertionError: assert False",
            f"AssertionError: Lists differ: {got} != {wanted}",
            "Failed: DID NOT RAISE <class 'ValueError'>",
            f"TypeError: '{rng.choice(_TYPES)}' object is not iterable",
        )
    )


def _error(broken: BrokenFunction, rng: random.Random, *, at_bug: bool) -> str:
    new = broken.bug.new.strip("() ,:.[]")
    word = new if at_bug and _WORD.fullmatch(new) else ""
    kind = rng.choice(_TYPES)
    other = rng.choice(_TYPES)
    if broken.family == "exception_type" and word:
        return f"{word}: {rng.choice(('invalid value', 'bad argument', 'not found'))}"
    if broken.family in ("call_pair", "attribute") and word and rng.random() < 0.8:
        return f"AttributeError: '{kind}' object has no attribute '{word}'"
    if broken.family == "wrong_variable" and word and rng.random() < 0.35:
        return (
            f"UnboundLocalError: cannot access local variable '{word}' where it is not "
            "associated with a value"
        )
    operators = re.findall(r"[-+*/%@&|]|//|\*\*", new) if at_bug else []
    if broken.family == "arithmetic" and operators:
        return f"TypeError: unsupported operand type(s) for {operators[0]}: '{kind}' and '{other}'"
    if broken.family == "index_slice" and rng.random() < 0.5:
        return f"IndexError: {rng.choice(('list', 'string', 'tuple'))} index out of range"
    words = _WORD.findall(broken.lines[broken.bug.line - broken.first])
    return rng.choice(
        (
            f"TypeError: '{kind}' object is not {rng.choice(('callable', 'iterable'))}",
            f"TypeError: '{kind}' object is not subscriptable",
            f"AttributeError: '{kind}' object has no attribute '{rng.choice(words or ['get'])}'",
            f"TypeError: unsupported operand type(s) for +: '{kind}' and '{other}'",
            f"TypeError: '<' not supported between instances of '{kind}' and '{other}'",
            f"KeyError: {_value(rng)}",
            f"ValueError: {rng.choice(('not enough values to unpack', 'invalid value'))}",
        )
    )
