"""`[sandbox]`: the isolated computers in which agents work and tests run."""

from pydantic import Field

from insitu.config.section import Section


class SandboxConfig(Section):
    """The back-end, and the limits of the sandbox in which tests run."""

    backend: str = "bubblewrap"
    """Which back-end makes sandboxes; `insitu doctor` lists those that work here."""
    folder: str = ""
    """Where sandboxes keep their files while they live; empty: in the run's folder."""
    memory_mb: int = Field(default=768, ge=32)
    """Memory of one verifier's sandbox in MiB; the agent's limits are in product.toml."""
    pids: int = Field(default=64, ge=2)
    """Processes and threads of one verifier's sandbox."""
    verifiers: int = Field(default=2, ge=1)
    """Verifiers that run side by side."""
