"""`insitu midtrain`: the recipe's section → the trainer."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from insitu.config.midtrain import SourceConfig
from insitu.config.tree import Config
from insitu.train.token_sets import TokenSource

if TYPE_CHECKING:
    from insitu.train.midtrain import MidtrainResult, MidtrainSpec


def run_midtrain(config: Config, *, progress: bool = True) -> "MidtrainResult":
    """Train what `[midtrain]` describes, or go on with it; the run's folder is its result's.

    Raises:
        UsageError: a token set or the model cannot be used.
    """
    config.require("midtrain.train")
    # Here and not above: this loads torch.
    from insitu.train.midtrain import midtrain

    return midtrain(midtrain_spec(config), progress=progress)


def midtrain_spec(config: Config) -> "MidtrainSpec":
    """The recipe as the trainer takes it; starts from `policy.model`, or from nothing."""
    from insitu.train.midtrain import MidtrainSpec
    from insitu.train.model import ModelShape
    from insitu.train.optimiser import AdamSpec

    section = config.midtrain
    return MidtrainSpec(
        out=str(Path(config.run.folder) / (config.run.name or "midtrain")),
        train=tuple(_source(source) for source in section.train),
        held_out=tuple(TokenSource(folder=folder) for folder in section.held_out),
        init=config.policy.model,
        shape=ModelShape(**section.shape.model_dump(), context=section.context),
        tokenizer=section.tokenizer,
        seed=config.run.seed,
        threads=section.threads or len(os.sched_getaffinity(0)),
        batch_tokens=section.batch_tokens,
        micro_tokens=section.micro_tokens,
        context=section.context,
        max_tokens=section.max_tokens,
        max_wall_s=section.max_wall_s or math.inf,
        optimiser=section.optimiser,
        lr=section.lr,
        schedule=section.schedule,
        warmup=section.warmup,
        decay=section.decay,
        lr_floor=section.lr_floor,
        adam=AdamSpec(weight_decay=section.weight_decay),
        eval_every=section.eval_every,
        eval_tokens=section.eval_tokens,
        save_every_s=section.save_every_s,
    )


def _source(source: SourceConfig) -> TokenSource:
    kept = source.decay_weight if source.decay_weight >= 0 else None
    return TokenSource(folder=source.folder, weight=source.weight, decay_weight=kept)
