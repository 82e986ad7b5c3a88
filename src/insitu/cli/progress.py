"""A flow's progress on the terminal: a bar with an estimate of the time left, lines above it."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """Draws on standard error; where that is no terminal, stages and lines are printed plainly."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._stage: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins, of `total` units where that is known."""
        if self._stage is not None:
            self._bars.stop_task(self._stage)
        self._stage = self._bars.add_task(name, total=total, note="")
        if self._bars.disable:
            self.say(name)

    def advance(self, done: int, note: str = "") -> None:
        """`done` units of the stage are finished; `note` is the newest figure worth showing."""
        if self._stage is not None:
            self._bars.update(self._stage, completed=done, note=note)

    def say(self, line: str) -> None:
        """Something a person should read, above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
