"""`[sandbox]`: the isolated computers in which agents work and tests run."""

from insitu.config.section import Section


class SandboxConfig(Section):
    """The back-end; the limits of the agent's sandbox are in product.toml."""

    backend: str = "bubblewrap"
    """Which back-end makes sandboxes; `insitu doctor` lists those that work here."""
    folder: str = ""
    """Where sandboxes keep their files while they live; empty: in the run's folder."""
