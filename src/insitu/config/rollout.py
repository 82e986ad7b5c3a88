"""`[rollout]`: how episodes are kept in flight."""

from pydantic import Field

from insitu.config.section import Section


class RolloutConfig(Section):
    """The dispatcher."""

    in_flight: int = Field(default=32, ge=1)
    """Episodes at the same time."""
    retries: int = Field(default=3, ge=0)
    """Faults of the system per group that are retried before the group is discarded."""
