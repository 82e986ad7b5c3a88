"""`[build]`: what `insitu tasks build` makes."""

from pydantic import Field

from insitu.config.section import Section


class PackageConfig(Section):
    """A package whose tests judge the tasks, where it needs more than its name."""

    source: str
    """`name`, `name==version`, path of an archive, or path of a folder."""
    requires: tuple[str, ...] = ()
    """More requirements of its tests, e.g. ["freezegun"]."""
    test_files: tuple[str, ...] = ()
    """Globs of the test files to use, relative to its folder; empty: all."""
    skip_tests: tuple[str, ...] = ()
    """Globs of test names to leave out."""
    allow_failing: bool = False
    """Leave failing tests out instead of refusing the package."""
    drop_options: bool = False
    """Ignore the options that its own settings give pytest, e.g. of a plugin it need not have."""
    allow_licence: bool = False
    """Use it although its licence is not on the permissive list."""


class BuildConfig(Section):
    """Tasks made by injecting bugs into real packages."""

    out: str = ""
    """Folder of the task set to write or to complete."""
    packages: tuple[PackageConfig, ...] = ()
    """Where the tasks come from."""
    tasks: int = Field(default=400, ge=1)
    """How many tasks to make; fewer where balance or the packages do not give them."""
    rl_tasks: int = Field(default=-1, ge=-1)
    """How many are for RL, the best balanced first, the others for transcripts; -1: all."""
    candidates: bool = False
    """A held-out set: run every legal edit of each broken function, for the baselines."""
    apart_from: tuple[str, ...] = ()
    """Folders of task sets with which no function may be shared."""
    per_function: int = Field(default=3, ge=1)
    """At most so many bugs in one function."""
    tries: int = Field(default=8, ge=1)
    """Bugs tried per function."""
    fewest_edits: int = Field(default=12, ge=1)
    """Functions with fewer legal edits are not used, so that a guess is hard."""
    most_tests: int = Field(default=12, ge=1)
    """Tests that judge one function, at most."""
    workers: int = Field(default=0, ge=0)
    """Processes that build side by side; 0: one per core."""
    pins: tuple[str, ...] = ()
    """Versions of what gets installed beside the packages, e.g. ["pytest==9.0.0"]."""
    known: str = ""
    """File of known work (`insitu tasks known`), used for each package that it fits; empty: none."""
    keep_going: bool = False
    """Leave out packages that cannot be used, and report them, instead of refusing the build."""
