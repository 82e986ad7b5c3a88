"""`[product]`: the agent that the policy works inside."""

from pydantic import Field

from insitu.config.section import Section


class ProductConfig(Section):
    """Which product, and how it is started."""

    file: str = ""
    """Path of product.toml or of the folder it lies in."""
    arguments: tuple[str, ...] = ()
    """Appended to the product's command, e.g. ["--max-steps", "8"]."""
    timeout_s: float = Field(default=0.0, ge=0)
    """Wall-clock limit of one episode in seconds; 0: the product's own."""
