"""A file as pieces that fit a context, cut where a reader would cut it."""

from collections.abc import Callable, Sequence

Count = Callable[[str], int]
"""Tokens of a text."""

_LEAST = 0.5
"""A piece is at least this full before a good border ends it."""
_CLOSERS = ("}", "};", "})", "});", "end")


def split_code(text: str, count: Count, limit: int) -> list[str]:
    """Cut `text` into pieces of at most `limit` tokens; joined, they are the text again.

    Each piece ends, where it can, before a line that begins something: one that follows an empty
    line or a closing brace, the less indented the better, so that functions and classes stay
    whole. Otherwise it ends at the end of a line. Only a line that is longer than `limit` is cut
    inside.

    Args:
        text: the file.
        count: tokens of a text; it may not give more for a part of a text than for its lines
            counted apart, except at their borders.
        limit: tokens of a piece; at least 16.
    """
    if not text:
        return []
    if count(text) <= limit:
        return [text]
    lines = [
        part for line in text.splitlines(keepends=True) for part in _fitting(line, count, limit)
    ]
    costs = [count(line) for line in lines]
    pieces, start = [], 0
    while start < len(lines):
        stop = _stop(lines, costs, start, limit)
        piece = "".join(lines[start:stop])
        while stop > start + 1 and count(piece) > limit:
            # Lines counted apart may be fewer tokens than together with a tokenizer that marks
            # the beginning of a text.
            stop -= 1
            piece = "".join(lines[start:stop])
        pieces.append(piece)
        start = stop
    return pieces


def _fitting(line: str, count: Count, limit: int) -> list[str]:
    """The line, in halves of halves where it is too long."""
    if len(line) < 2 or count(line) <= limit:
        return [line]
    middle = len(line) // 2
    return [*_fitting(line[:middle], count, limit), *_fitting(line[middle:], count, limit)]


def _stop(lines: Sequence[str], costs: Sequence[int], start: int, limit: int) -> int:
    """Index behind the last line of the piece that begins at `start`."""
    total, stop, best = 0, start, (3, 0)
    where = start
    while stop < len(lines) and (stop == start or total + costs[stop] <= limit):
        total += costs[stop]
        stop += 1
        if total >= _LEAST * limit and stop < len(lines):
            rank = _rank(lines, stop)
            if rank <= best:
                best, where = rank, stop
    if stop == len(lines):
        return stop
    return where if where > start else stop


def _rank(lines: Sequence[str], at: int) -> tuple[int, int]:
    """How good it is to cut before line `at`: smaller is better."""
    line, before = lines[at], lines[at - 1]
    if not line.strip():
        return (2, 0)
    indentation = len(line) - len(line.lstrip())
    begins = not before.strip() or before.strip() in _CLOSERS
    return (0, indentation) if begins and line.strip() not in _CLOSERS else (1, 0)
