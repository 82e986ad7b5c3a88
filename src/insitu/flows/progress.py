"""How a flow says what it is doing; the command line draws it, a log writes it, tests ignore it."""

from typing import Protocol


class Progress(Protocol):
    """Told by a flow where it is. Stages follow one another and do not nest."""

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins, of `total` units where that is known."""
        ...

    def advance(self, done: int, note: str = "") -> None:
        """`done` units of the stage are finished; `note` is the newest figure worth showing."""
        ...

    def say(self, line: str) -> None:
        """Something a person should read, above the bar."""
        ...


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: int | None) -> None:
        """Ignored."""

    def advance(self, done: int, note: str = "") -> None:
        """Ignored."""

    def say(self, line: str) -> None:
        """Ignored."""
