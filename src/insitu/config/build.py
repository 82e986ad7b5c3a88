"""`[build]`: what `insitu tasks build` makes."""

from pydantic import Field

from insitu.config.section import Section


class BuildConfig(Section):
    """Tasks made by injecting bugs into real packages."""

    out: str = ""
    """Folder of the task set to write."""
    packages: tuple[str, ...] = ()
    """Packages as pip takes them (`toolz==1.0.0`), source archives, or folders with git inside."""
    tasks: int = Field(default=400, ge=1)
    """How many tasks to make at most, over all packages."""
    per_package: int = Field(default=0, ge=0)
    """At most so many of one package; 0: no limit."""
    per_function: int = Field(default=2, ge=1)
    """At most so many bugs in one function."""
    min_candidates: int = Field(default=8, ge=1)
    """A function needs so many places that could be mutated, so that a guess is hard."""
    max_lines: int = Field(default=40, ge=3)
    """Longer functions are left alone."""
    min_informative: float = Field(default=0.5, ge=0, le=1)
    """Share of tasks whose failing test tells something about the bug's place or kind."""
    repeats: int = Field(default=3, ge=1)
    """Each task's tests run so often, broken and repaired, and must agree."""
    test_timeout_s: float = Field(default=10.0, gt=0)
    """A test that runs longer is not used."""
    workers: int = Field(default=0, ge=0)
    """Processes that build side by side; 0: one per core."""
