"""How source code is shown: which lines, with which numbers, cut to which width."""

import re
from pathlib import PurePath

from mender import texts

_WINDOW = 40
_WIDTH = 100
_DEF = re.compile(r"(\s*)(?:async\s+)?def\s")
_OPENING = re.compile(r"\s*[rRuU]?(\"\"\"|''')")


def is_test(path: PurePath) -> bool:
    """Whether a file of the repository belongs to its tests."""
    name = path.name
    return (
        bool({"test", "tests", "testing"} & set(path.parts[:-1]))
        or name == "conftest.py"
        or (name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")))
    )


def cut(text: str) -> str:
    """One line without its indentation, cut to a width that is worth reading."""
    text = text.strip()
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def numbered(lines: list[str], line: int) -> list[str]:
    """At most 40 lines around a line, within its function, as "{line} {text}"."""
    first, last = _function(lines, line - 1)
    shown = _without_docstring(lines, first, last)
    at = next((i for i, number in enumerate(shown) if number >= line - 1), len(shown) - 1)
    begin = max(0, min(at - _WINDOW // 2, len(shown) - _WINDOW))
    part = shown[begin : begin + _WINDOW]
    result = [texts.LINE.format(line=number + 1, text=lines[number]) for number in part]
    for i in range(1, len(part)):
        if part[i] != part[i - 1] + 1:
            result[i - 1] += texts.DOCSTRING_CUT
    return result


def _function(lines: list[str], at: int) -> tuple[int, int]:
    """First and last index of the innermost function around an index, or of the whole file."""
    for first in range(at, -1, -1):
        if _DEF.match(lines[first]):
            last = _end(lines, first)
            if last >= at:
                return first, last
    return 0, len(lines) - 1


def _end(lines: list[str], first: int) -> int:
    """Index of the last line of the function that begins at `first`."""
    indent, last, quote = _indent(lines[first]), first, ""
    for i in range(first, len(lines)):
        text = lines[i].lstrip()
        outside = i > first and not quote and _indent(lines[i]) <= indent
        if text and outside and text[0] not in ")]}#":
            return last
        if text and not (outside and text[0] == "#"):
            last = i
        quote = _quote_after(text, quote)
    return last


def _quote_after(text: str, quote: str) -> str:
    """The triple quote that is open after a line, given the one that was open before it."""
    for mark in re.findall(r'"""|\'\'\'', text):
        if not quote:
            quote = mark
        elif quote == mark:
            quote = ""
    return quote


def _without_docstring(lines: list[str], first: int, last: int) -> list[int]:
    """The indexes to show: all of them but those of a docstring after its first line."""
    start = next(
        (i for i in range(first, last) if lines[i].split("#")[0].rstrip().endswith(":")), -1
    )
    opening = _OPENING.match(lines[start + 1]) if start >= 0 else None
    if opening is None or lines[start + 1].count(opening[1]) > 1:
        return list(range(first, last + 1))
    closing = next((i for i in range(start + 2, last + 1) if opening[1] in lines[i]), start + 1)
    return [*range(first, start + 2), *range(closing + 1, last + 1)]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
