"""How far rollout may run ahead of the trainer."""

from dataclasses import dataclass


@dataclass(slots=True)
class Admission:
    """Paces new groups so that what they sample is trained at most `staleness` versions later.

    A group admitted while version v is served is trained, if groups are trained in the order
    of admission, at a version of at most v + `staleness`: capacity is counted in groups, as in
    AReaL (Fu et al., arXiv 2505.24298, section 5.1). `staleness` 0 is the on-policy schedule: the
    groups of one batch are admitted, trained, and only then the next ones.
    """

    groups_per_step: int
    staleness: int
    version: int = 0
    """The newest version that the engine serves."""
    admitted: int = 0
    """Groups admitted so far that were or will be trained (discarded ones do not count)."""
    limit: int = 0
    """Groups that the whole run trains on; 0: no limit. Nothing is begun that could not be used."""

    @property
    def capacity(self) -> int:
        """Groups that may be started now."""
        ahead = (self.version + self.staleness + 1) * self.groups_per_step
        return (min(ahead, self.limit) if self.limit else ahead) - self.admitted

    def admit(self) -> None:
        """Count a group that is being started.

        Raises:
            ValueError: there is no capacity.
        """
        if self.capacity <= 0:
            raise ValueError("no capacity: the trainer is behind by the staleness bound")
        self.admitted += 1

    def discard(self) -> None:
        """Count a group that will never be trained, which makes room for another."""
        self.admitted -= 1

    def is_stale(self, oldest_version: int) -> bool:
        """Whether tokens of `oldest_version` are beyond the bound for the next step."""
        return oldest_version >= 0 and self.version - oldest_version > self.staleness
