"""Runs tests of one function with edits in it, in the quickest way that is exact."""

from collections.abc import Sequence
from typing import Protocol

from insitu.tasks.mutate import apply_edit
from insitu.tasks.runner import RunResult, Worker
from insitu.tasks.stubs import locate, stub
from insitu.types import Edit


class TestedFunction(Protocol):
    """Where a function stands, and how long its tests take."""

    @property
    def path(self) -> str:
        """File, relative to the tree."""
        ...

    @property
    def qualname(self) -> str:
        """Qualified name."""
        ...

    @property
    def first_line(self) -> int:
        """The line of `def`."""
        ...

    @property
    def last_line(self) -> int:
        """Its last line."""
        ...

    @property
    def base_s(self) -> float:
        """Seconds of a run unchanged."""
        ...


_SWAP_LIMIT_S = 5.0
"""Of a run that imports nothing; a loop without end is the usual reason to reach it."""


def time_limit(base_s: float) -> float:
    """Seconds that a run of a broken function may take."""
    return max(3.0, 4 * base_s)


class Bench:
    """One function of one file on a warm worker."""

    def __init__(
        self, worker: Worker, source: str, function: TestedFunction, *, at_import: bool
    ) -> None:
        self.source = source
        self._worker, self._function = worker, function
        self._place = locate(source, function.first_line)
        self._swappable = not at_import and self._place.body > function.first_line

    def run(
        self,
        tests: Sequence[str],
        edits: Sequence[Edit],
        *,
        fresh: bool = False,
        stop_early: bool = False,
    ) -> RunResult:
        """Run the tests with the edits made one after the other.

        Args:
            tests: of one test file.
            edits: inside the function.
            fresh: import everything anew, as a verifier does, also where a swap would do.
            stop_early: stop at the first failure.
        """
        text = self.source
        for edit in edits:
            text = apply_edit(text, edit)
        f, limit = self._function, time_limit(self._function.base_s)
        if not fresh and self._swappable and all(e.line >= self._place.body for e in edits):
            result = self._worker.swap(
                tests,
                path=f.path,
                name=f.qualname.rsplit(".", 1)[-1],
                begin=self._place.begin,
                line=f.first_line,
                stub=stub(self.source, text, f.first_line, f.last_line),
                timeout_s=min(limit, _SWAP_LIMIT_S),
                stop_early=stop_early,
            )
            if result.status == "timeout" or (result.status == "done" and result.exit_code >= 0):
                return result
            self._swappable = False
        return self._worker.run(tests, files={f.path: text}, timeout_s=limit, stop_early=stop_early)
