"""`[run]`: what the run is called and where it lies."""

from pydantic import Field

from insitu.config.section import Section


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")
    """Name of the run's folder; empty: the recipe's file name."""
    folder: str = "runs"
    """Folder in which runs lie, relative to the working directory."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Decides the order of tasks, every episode's sampling and the trainer's randomness."""
    log_level: str = Field(default="WARNING", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    """Least severity shown on the terminal; the run's log.txt has INFO in any case."""
