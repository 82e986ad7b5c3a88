"""`[reward]`: what an episode is worth."""

from pydantic import Field

from insitu.config.section import Section


class RewardConfig(Section):
    """The declared combination of an episode's signals."""

    formula: str = "passed"
    """Arithmetic over signal names, e.g. "passed - 0.02 * effort"."""
    protected: tuple[str, ...] = ("tests/**", "test/**", "conftest.py", "**/conftest.py")
    """Paths that the agent's changes are taken back from before its work is judged."""
    cache: str = ""
    """Folder that keeps verdicts of equal changes; empty: in the run's folder."""
    min_reward: float = Field(default=-10.0)
    """A formula's value below is cut to this."""
    max_reward: float = Field(default=10.0)
    """A formula's value above is cut to this."""
