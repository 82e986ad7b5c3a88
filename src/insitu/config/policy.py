"""`[policy]`: the model that is trained."""

from pydantic import Field

from insitu.config.section import Section


class PolicyConfig(Section):
    """The weights at the start, and the tokenizer and renderer that belong to them."""

    model: str = ""
    """Hugging Face model folder: config.json, safetensors and the tokenizer's files."""
    context: int = Field(default=0, ge=0)
    """Longest sequence in tokens, prompt and answer together; 0: what the model allows."""
