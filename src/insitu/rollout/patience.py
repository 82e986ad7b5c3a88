"""When to stop trying: faults of the system are retried, but not for ever."""

from dataclasses import dataclass

from insitu.types import UsageError

_ROW = 8
"""So many losses in a row are no accident: nothing succeeded between them."""


@dataclass(kw_only=True, slots=True)
class Patience:
    """Counts groups, or episodes, that were given up after their retries, until one is not.

    Example: `patience.fault("ProductError: …")`, then `patience.lost()`.
    """

    in_a_row: int = 0
    last: str = ""

    def fault(self, note: str) -> None:
        """Remember the cause of a fault, to be told in the end."""
        self.last = note

    def kept(self) -> None:
        """One ended as it should: the machine works."""
        self.in_a_row = 0

    def lost(self) -> None:
        """One was given up.

        Raises:
            UsageError: as were all of the last few.
        """
        self.in_a_row += 1
        if self.in_a_row >= _ROW:
            raise UsageError(
                f"nothing but faults, {_ROW} times in a row, retries included; the last: "
                f"{self.last}",
                remedy="mend its cause, then go on with the run",
            )
