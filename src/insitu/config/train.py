"""`[train]`: the RL step."""

from typing import Literal

from pydantic import Field

from insitu.config.section import Section


class TrainConfig(Section):
    """Optimiser, loss and how a batch is computed."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the gradient's square."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay of matrices other than embeddings."""
    clip: float = Field(default=1.0, ge=0)
    """Largest L2 norm of the gradient; 0: no clipping."""
    loss: Literal["dppo_tv", "double_sided_is"] = "dppo_tv"
    """Importance-corrected loss: masked on the difference of probabilities with a squared
    log-ratio penalty, or on the probability ratio, both sides."""
    tv_threshold: float = Field(default=0.2, gt=0, le=1)
    """`dppo_tv`: probability by which a token may have moved before its push is masked out."""
    kl: float = Field(default=1e-3, ge=0)
    """`dppo_tv`: weight of the squared log-ratio to the policy that sampled."""
    ratio_low: float = Field(default=0.2, ge=0)
    """`double_sided_is`: tokens whose probability ratio, trainer to sampler, is below are out."""
    ratio_high: float = Field(default=4.0, gt=0)
    """`double_sided_is`: the ratio's upper bound."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the forward pass; the optimiser's weights are float32."""
    device: Literal["auto", "cpu"] = "auto"
    """Where the trainer runs; `auto` is the CPU, an accelerator is not used yet."""
    threads: int = Field(default=1, ge=0)
    """CPU cores it uses; 0: all."""
    max_tokens_per_pack: int = Field(default=4096, ge=16)
    """Tokens per forward and backward pass; bounds memory, does not change the result."""
