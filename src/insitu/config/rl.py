"""`[rl]`: the loop."""

from pydantic import Field

from insitu.config.section import Section


class RLConfig(Section):
    """Groups, steps, and how far rollout may run ahead of the trainer."""

    group_size: int = Field(default=8, ge=2)
    """Episodes of one task that are compared with each other."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups in one train step."""
    steps: int = Field(default=100, ge=1)
    """Train steps at most."""
    max_wall_s: float = Field(default=0.0, ge=0)
    """Stop after so many seconds of training, all sessions together; 0: no limit."""
    staleness: int = Field(default=1, ge=0)
    """Versions by which a trained token may be older than the policy; 0: on-policy."""
    skip_groups_without_signal: bool = True
    """Discard groups whose rewards are all equal and sample others instead."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between two checkpoints of the trainer."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest so many checkpoints, and policy versions besides the base, are kept."""

    @property
    def on_policy(self) -> bool:
        """Whether every token is trained by the version that sampled it."""
        return self.staleness == 0
