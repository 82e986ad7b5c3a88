"""`[gateway]`: what the product's requests are allowed and sampled with."""

from typing import Literal

from pydantic import Field

from insitu.config.section import Section


class GatewayConfig(Section):
    """Sampling and limits of every episode's calls."""

    sampling: Literal["override", "honour"] = "override"
    """Whether the settings below replace those the product sends, or only fill what it omits."""
    temperature: float = Field(default=1.0, ge=0)
    """Of rollouts; the log-probabilities recorded are those of the distribution sampled from."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus; 1 keeps all tokens."""
    top_k: int = Field(default=0, ge=0)
    """Keep so many most likely tokens; 0 keeps all."""
    max_tokens: int = Field(default=256, ge=1)
    """Tokens sampled per call at most."""
    max_calls: int = Field(default=32, ge=1)
    """Calls per episode at most; one more ends it as `turn_limit`."""
