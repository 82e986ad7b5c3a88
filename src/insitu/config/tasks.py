"""`[tasks]`: which tasks are trained on and which are held out."""

from pydantic import Field

from insitu.config.section import Section


class TasksConfig(Section):
    """Task sets in Harbor's folder format."""

    train: str = ""
    """Folder of the task set to train on."""
    heldout: str = ""
    """Folder of the task set to evaluate on; it shares no package with `train`."""
    limit: int = Field(default=0, ge=0)
    """Train on the first so many tasks of the set's balanced order; 0: all."""
    where: tuple[str, ...] = ()
    """Train only on tasks whose metadata hold these values, e.g. `helpful=yes`: those whose failing
    test points at the bug."""
