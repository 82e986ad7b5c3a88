"""`[midtrain]`: learning from code and from transcripts before RL."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from insitu.config.section import Section


class SourceConfig(Section):
    """A source of documents: exactly one of `folder`, `code`, `transcripts` and `ledger`."""

    folder: str = ""
    """Folder of a token set."""
    code: str = ""
    """Folder or git checkout of code in any language; one document per file."""
    transcripts: str = ""
    """JSON Lines file of conversations in OpenAI's form; loss on the assistant's tokens only."""
    ledger: str = ""
    """Folder of an RL run: the exact tokens of its passed episodes, evaluations left out."""
    suffixes: tuple[str, ...] = ()
    """Of the files in `code` (".py"); empty: those of common programming languages."""
    tools: str = ""
    """JSON file of tool definitions, for conversations in `transcripts` that bring none."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        named = [kind for kind in KINDS if getattr(self, kind)]
        if len(named) != 1:
            given = " and ".join(named) or "none"
            raise ValueError(f"name one of {', '.join(KINDS)} (named: {given})")
        for key, kind in (("suffixes", "code"), ("tools", "transcripts")):
            if getattr(self, key) and not getattr(self, kind):
                raise ValueError(f"{key} goes with {kind}")
        return self

    @property
    def kind(self) -> str:
        """`folder`, `code`, `transcripts` or `ledger`."""
        return next(kind for kind in KINDS if getattr(self, kind))

    @property
    def path(self) -> str:
        """Where the source lies."""
        return str(getattr(self, self.kind))


KINDS = ("folder", "code", "transcripts", "ledger")


class TrainSourceConfig(SourceConfig):
    """A source of the mixture: exactly one of `folder`, `code`, `transcripts` and `ledger`."""

    weight: float = Field(default=1.0, gt=0)
    """Share of the tokens, relative to the other sources' weights."""
    decay_weight: float = Field(default=-1.0)
    """The weight during the learning rate's decay; negative: the same."""


def _as_tables(value: object) -> object:
    """A text among the sources is the folder of a token set."""
    if not isinstance(value, tuple):
        return value
    return tuple({"folder": item} if isinstance(item, str) else item for item in value)


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
    """Sources, schedule and optimiser of one mid-training run."""

    train: tuple[TrainSourceConfig, ...] = ()
    """Sources to learn from."""
    held_out: Annotated[tuple[SourceConfig, ...], BeforeValidator(_as_tables)] = ()
    """Sources to evaluate on, each apart; a text is the folder of a token set."""
    tokenizer: str = ""
    """Folder of the tokenizer that reads the sources and goes into the result; empty: policy.model."""
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
