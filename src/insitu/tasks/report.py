"""What a build did, as data and as a table."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from insitu.kit.atomic import write_atomic
from insitu.tasks.record import TaskRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageReport:
    """One package of a build."""

    source: str
    licence: str = ""
    problem: str = ""
    """Why the package was left out."""
    tests: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Tests and test files not used, by reason."""
    named: tuple[str, ...] = ()
    functions: int = 0
    """Functions that tests enter."""
    trials: dict[str, int] = field(default_factory=dict)
    """Bugs tried, by outcome."""
    tasks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """One build of a task set."""

    folder: str
    wanted: int
    built: int
    """Tasks in the set."""
    written: int
    """Of them, written by this build; the others were there already."""
    wall_s: float
    per_minute: float
    """Tasks per minute of this build; 0 where it only reused."""
    packages: tuple[PackageReport, ...]
    rejected: dict[str, int]
    """Bugs not used, by reason."""
    families: dict[str, int]
    uses: dict[str, int]
    helpful_share: float
    plan: str
    """The settings on which the choice depends, as text."""
    unevenness: float
    """Total variation between the families of the repairs and those of the legal edits."""
    legal_edits_median: int
    passing_candidates: float
    """Mean number of legal edits that pass, where candidates were run; the repair is one."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")

    def table(self) -> Table:
        """The report for a terminal."""
        table = Table(title=f"{self.built} of {self.wanted} tasks in {self.folder}")
        for name in ("package", "licence", "tests", "functions", "tried", "killed", "tasks"):
            table.add_column(name, justify="left" if name in ("package", "licence") else "right")
        for p in self.packages:
            if p.problem:
                table.add_row(p.source, p.problem, *[""] * 5)
                continue
            figures = (p.tests, p.functions, sum(p.trials.values()), p.trials.get("killed", 0))
            table.add_row(p.source, p.licence, *[str(n) for n in (*figures, p.tasks)])
        lines = [
            f"{self.written} written in {self.wall_s:.0f} s ({self.per_minute:.0f} per minute)",
            f"helpful {self.helpful_share:.0%}, unevenness {self.unevenness:.1%},"
            f" median {self.legal_edits_median} legal edits",
            "families: " + _counts(self.families),
            "not used: " + _counts(self.rejected),
        ]
        table.caption = "\n".join(lines)
        table.caption_justify = "left"
        return table


def _counts(counts: dict[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda e: -e[1])
    return ", ".join(f"{name} {n}" for name, n in ranked) or "none"


def figures(records: Sequence[TaskRecord]) -> dict[str, object]:
    """The figures of a `BuildReport` that follow from the tasks alone."""
    n = max(1, len(records))
    edits = sorted(r.legal_edits for r in records)
    passing = [
        sum(c.passes for c in r.candidates) for r in records if r.candidates and r.outcomes_run
    ]
    return {
        "families": dict(Counter(r.family for r in records)),
        "uses": dict(Counter(r.use for r in records)),
        "helpful_share": sum(r.helpful for r in records) / n,
        "legal_edits_median": edits[len(edits) // 2] if edits else 0,
        "passing_candidates": sum(passing) / max(1, len(passing)),
    }
