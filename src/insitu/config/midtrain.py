"""`[midtrain]`: learning from code and from transcripts before RL."""

from typing import Literal

from pydantic import Field

from insitu.config.section import Section


class SourceConfig(Section):
    """One token set of the mixture."""

    folder: str
    """Folder of a token set."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the tokens, relative to the other sources' weights."""
    decay_weight: float = Field(default=-1.0)
    """The weight during the learning rate's decay; negative: the same."""


class ShapeConfig(Section):
    """The shape of a new Qwen3 model, where none is given to start from."""

    hidden: int = Field(default=256, ge=8)
    """Width of the residual stream."""
    layers: int = Field(default=6, ge=1)
    """Decoder layers."""
    heads: int = Field(default=4, ge=1)
    """Query heads."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads."""
    head_dim: int = Field(default=64, ge=2)
    """Width of a head."""
    ffn: int = Field(default=768, ge=8)
    """Width of the feed-forward layer."""
    vocabulary: int = Field(default=4096, ge=256)
    """Tokens of the vocabulary."""


class MidtrainConfig(Section):
    """Token sets, schedule and optimiser of one mid-training run."""

    train: tuple[SourceConfig, ...] = ()
    """Token sets to learn from."""
    held_out: tuple[str, ...] = ()
    """Folders of token sets to evaluate on, each apart."""
    tokenizer: str = ""
    """Folder whose tokenizer files go into the result; empty: those of policy.model."""
    shape: ShapeConfig = ShapeConfig()
    """Of a new model, where policy.model is empty."""
    context: int = Field(default=2048, ge=16)
    """Longer documents are cut into pieces of so many tokens."""
    max_tokens: int = Field(default=10_000_000, ge=1)
    """Tokens to train on."""
    max_wall_s: float = Field(default=0.0, ge=0)
    """Shorten the schedule so that it ends after so many seconds; 0: no limit."""
    batch_tokens: int = Field(default=16_384, ge=16)
    """Tokens per optimiser step."""
    micro_tokens: int = Field(default=4096, ge=16)
    """Tokens per forward and backward pass; bounds memory, does not change the result."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """`muon` learns more from each token of a new small model."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    lr_floor: float = Field(default=0.02, ge=0, le=1)
    """The last learning rate as a share of the peak."""
    schedule: Literal["wsd", "cosine"] = "wsd"
    """Learning rate over the run: warm-up, stable, decay; or half a cosine."""
    warmup: float = Field(default=0.02, ge=0, le=1)
    """Share of the run that warms up."""
    decay: float = Field(default=0.25, ge=0, le=1)
    """Share of the run that decays (`wsd`)."""
    weight_decay: float = Field(default=0.1, ge=0)
    """AdamW's decay of matrices other than embeddings."""
    threads: int = Field(default=0, ge=0)
    """CPU cores it uses; 0: all."""
    eval_every: int = Field(default=100, ge=0)
    """Steps between evaluations; 0: only at the end."""
    eval_tokens: int = Field(default=32_768, ge=1)
    """Tokens per held-out set."""
    save_every_s: float = Field(default=300.0, gt=0)
    """Seconds between checkpoints."""
