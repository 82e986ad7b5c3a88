"""`[reward]`: what an episode is worth."""

from insitu.config.section import Section


class RewardConfig(Section):
    """The declared combination of an episode's signals."""

    formula: str = "passed"
    """Arithmetic over signal names, e.g. "passed - 0.02 * effort"."""
    cache: str = ""
    """Folder that keeps verdicts of equal changes; empty: in the run's folder."""
