"""What the model is told about a test run: where it failed and why, in a few lines."""

import linecache
import re
from pathlib import Path
from typing import Any

from mender import source, texts

_FRAMES = 4
_MESSAGE_LINES = 3
_MESSAGE_WIDTH = 200
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


class Listener:
    """A pytest plugin that remembers how the test ended."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._passed = False
        self._failed = False
        self._error: BaseException | None = None

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        if self._error is None:
            self._error = call.excinfo.value

    def pytest_collectreport(self, report: Any) -> None:
        self._failed |= bool(report.failed)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed = True
        elif report.when == "call" and report.passed:
            self._passed = True

    def text(self, test: str, complaint: str) -> str:
        """The report as the model sees it; `complaint` is what pytest wrote to standard error."""
        if self._failed:
            return "\n".join([texts.FAILED.format(test=test), *self._where_and_why()])
        if self._passed:
            return texts.PASSED
        if complaint.startswith(("ERROR: not found", "ERROR: file")):
            return texts.NOT_FOUND.format(test=test)
        why = _from_complaint(complaint, self._root)
        if why:
            return "\n".join([texts.FAILED.format(test=test), *why])
        return texts.NOT_RUN.format(test=test)

    def _where_and_why(self) -> list[str]:
        if self._error is None:
            return []
        error = _cause(self._error)
        lines = [
            texts.HIT.format(path=path, line=line, text=source.cut(linecache.getline(file, line)))
            for file, line in _places(error)
            if (path := _relative(file, self._root))
        ]
        return lines[-_FRAMES:] + _message(error, self._root)


def _cause(error: BaseException) -> BaseException:
    """The exception behind pytest's own `CollectError`."""
    while type(error).__module__.startswith("_pytest.nodes") and error.__cause__ is not None:
        error = error.__cause__
    return error


def _places(error: BaseException) -> list[tuple[str, int]]:
    """File and line of each frame, the outermost first."""
    found = []
    traceback = error.__traceback__
    while traceback is not None:
        found.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        found.append((error.filename, error.lineno))
    return found


def _from_complaint(complaint: str, root: Path) -> list[str]:
    """The same from pytest's own text, which is all there is when a conftest.py breaks."""
    lines = [
        texts.HIT.format(path=path, line=line, text=source.cut(text))
        for path, line, text in re.findall(r"^(.+?):(\d+): in .*\n(.*)$", complaint, re.MULTILINE)
        if (root / path).is_file()
    ]
    said = re.findall(r"^E +(.*)$", complaint, re.MULTILINE)
    return lines[-_FRAMES:] + _short("\n".join(said), root) if said else []


def _relative(file: str, root: Path) -> str:
    try:
        return Path(file).relative_to(root).as_posix()
    except ValueError:
        return ""


def _message(error: BaseException, root: Path) -> list[str]:
    try:
        said = str(error)
    except Exception as e:  # noqa: BLE001 - the repository's own __str__ may be what is broken
        said = f"<{type(e).__name__} in __str__>"
    if isinstance(error, SyntaxError):
        said = error.msg
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return _short(text, root)


def _short(text: str, root: Path) -> list[str]:
    """A message in at most 3 lines and 200 characters."""
    text = _ADDRESS.sub("0x...", text.replace(f"{root}/", ""))
    lines = [line.rstrip() for line in text.split("\n") if line.strip()][:_MESSAGE_LINES]
    cut = "\n".join(lines)
    return (cut if len(cut) <= _MESSAGE_WIDTH else cut[: _MESSAGE_WIDTH - 3] + "...").split("\n")
