"""Where the tokens of a Python source stand, line by line, in characters."""

import ast
import bisect
import io
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_SKIPPED = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


@dataclass(frozen=True, slots=True)
class Token:
    """A token that stands on one line: 1-based line, 0-based characters."""

    line: int
    start: int
    end: int
    text: str


class Layout:
    """The lines and tokens of one source text.

    Raises:
        SyntaxError: the source is not Python.
    """

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.tree = ast.parse(source)
        self._tokens = [
            Token(t.start[0], t.start[1], t.end[1], t.string)
            for t in tokenize.generate_tokens(io.StringIO(source).readline)
            if t.type not in _SKIPPED and t.start[0] == t.end[0]
        ]
        self._starts = [(t.line, t.start) for t in self._tokens]

    def column(self, line: int, offset: int) -> int:
        """The character at which UTF-8 byte `offset` of line `line` begins."""
        text = self.lines[line - 1]
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))

    def between(self, first: tuple[int, int], last: tuple[int, int]) -> list[Token]:
        """Tokens that begin at or after `first` and before `last` (line, character)."""
        low = bisect.bisect_left(self._starts, first)
        return self._tokens[low : bisect.bisect_left(self._starts, last)]

    def on_line(self, line: int) -> list[Token]:
        """The tokens that stand wholly on the line."""
        return self.between((line, 0), (line + 1, 0))


@lru_cache(maxsize=32)
def layout_of(source: str) -> Layout:
    """The layout of `source`; the last few are kept."""
    return Layout(source)


def read_source(path: Path) -> str:
    """The text of a source file, line ends untouched.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return path.read_bytes().decode("utf-8")
