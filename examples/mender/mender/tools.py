"""What the model can do in the repository."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mender import source, texts

_HITS = 10
_LISTED = 40
_SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


class ToolError(Exception):
    """What is wrong with a tool call; the model is told."""


class Tools:
    """The tools, bound to one repository and its failing test."""

    def __init__(self, root: Path, run_test: Callable[[], str], max_test_runs: int) -> None:
        self.finished = False
        self._root = root.resolve()
        self._run_test = run_test
        self._runs_left = max_test_runs
        self._edits: list[tuple[Path, int, str]] = []

    def use(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's result, or a line that says what is wrong with the call."""
        try:
            _check(name, arguments)
            result: str = getattr(self, name)(**arguments)
        except ToolError as e:
            return texts.ERROR.format(problem=e)
        return result

    def run_tests(self) -> str:
        if self._runs_left <= 0:
            return texts.NO_RUNS_LEFT
        self._runs_left -= 1
        return self._run_test()

    def read(self, path: str, line: int) -> str:
        lines = self._lines(self._file(path), path, line)
        return "\n".join(source.numbered([text.rstrip("\r") for text in lines], line))

    def edit(self, path: str, line: int, old: str, new: str) -> str:
        file = self._file(path)
        if source.is_test(file.relative_to(self._root)):
            raise ToolError(texts.IS_TEST)
        lines = self._lines(file, path, line)
        before = lines[line - 1]
        if not old:
            raise ToolError(texts.EMPTY_OLD)
        if old == new:
            raise ToolError(texts.SAME)
        if old not in before:
            raise ToolError(texts.NOT_IN_LINE.format(line=line))
        self._edits.append((file, line, "\n".join(lines)))
        lines[line - 1] = before.replace(old, new, 1)
        _write(file, "\n".join(lines))
        return texts.LINE.format(line=line, text=lines[line - 1].rstrip("\r"))

    def undo(self) -> str:
        if not self._edits:
            raise ToolError(texts.NO_EDIT)
        file, line, before = self._edits.pop()
        _write(file, before)
        return texts.LINE.format(line=line, text=before.split("\n")[line - 1].rstrip("\r"))

    def search(self, text: str) -> str:
        if not text.strip():
            raise ToolError(texts.EMPTY_TEXT)
        hits = []
        for file in self._python_files():
            path = file.relative_to(self._root).as_posix()
            content = file.read_text(encoding="utf-8", errors="replace")
            for number, found in enumerate(content.split("\n"), 1):
                if text in found:
                    hits.append(texts.HIT.format(path=path, line=number, text=source.cut(found)))
                    if len(hits) == _HITS:
                        return "\n".join(hits)
        return "\n".join(hits) or texts.NO_MATCH

    def list_files(self, path: str) -> str:
        folder = self._inside(path)
        if not folder.is_dir():
            raise ToolError(texts.NO_FOLDER.format(path=path))
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in os.scandir(folder)
            if not _hidden(entry.name)
        )
        if len(names) > _LISTED:
            names[_LISTED:] = [texts.MORE.format(count=len(names) - _LISTED)]
        return "\n".join(names) or texts.EMPTY_FOLDER

    def finish(self, summary: str = "") -> str:
        self.finished = True
        return summary or texts.DONE

    def _inside(self, path: str) -> Path:
        try:
            full = (self._root / path).resolve()
        except (OSError, ValueError, RuntimeError):
            raise ToolError(texts.NO_FILE.format(path=path)) from None
        if not full.is_relative_to(self._root):
            raise ToolError(texts.NO_FILE.format(path=path))
        return full

    def _file(self, path: str) -> Path:
        file = self._inside(path)
        try:
            found = file.is_file()
        except OSError:  # e.g. a name that is too long
            found = False
        if not found:
            raise ToolError(texts.NO_FILE.format(path=path))
        return file

    def _lines(self, file: Path, path: str, line: int) -> list[str]:
        """All lines, ends of lines and of the file kept, so that joining them gives the file."""
        try:
            with file.open(encoding="utf-8", newline="") as f:
                lines = f.read().split("\n")
        except UnicodeDecodeError:
            raise ToolError(texts.NOT_SOURCE.format(path=path)) from None
        count = len(lines) - (lines[-1] == "")
        if not 1 <= line <= count:
            raise ToolError(texts.NO_LINE.format(path=path, count=count))
        return lines

    def _python_files(self) -> list[Path]:
        found: list[Path] = []
        for folder, names, files in os.walk(self._root):
            names[:] = sorted(name for name in names if not _hidden(name))
            found += (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
        return found


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8", newline="") as f:
        f.write(text)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED


def _check(name: str, arguments: dict[str, Any]) -> None:
    try:
        fields = texts.fields(name)
    except KeyError:
        raise ToolError(texts.UNKNOWN_TOOL.format(name=name)) from None
    for field in texts.required(name):
        if field not in arguments:
            raise ToolError(texts.MISSING.format(name=field))
    for field, value in arguments.items():
        if field not in fields:
            raise ToolError(texts.UNKNOWN_FIELD.format(tool=name, name=field))
        if fields[field] == "string" and not isinstance(value, str):
            raise ToolError(texts.NOT_TEXT.format(name=field))
        if fields[field] == "integer" and type(value) is not int:
            raise ToolError(texts.NOT_NUMBER.format(name=field))
