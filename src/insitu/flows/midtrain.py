"""`insitu midtrain`: the recipe's section → sources as token sets → the trainer."""

import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from insitu.config.tree import Config
from insitu.flows.progress import Progress, Silent
from insitu.flows.runs import own_run
from insitu.flows.sources import SourceSets, source_sets
from insitu.ledger.run_folder import RunFolder
from insitu.types import UsageError

if TYPE_CHECKING:
    from insitu.train.midtrain import MidtrainResult, MidtrainSpec


def run_midtrain(
    config: Config,
    *,
    reading: AbstractContextManager[Progress] | None = None,
    progress: bool = True,
) -> "MidtrainResult":
    """Train what `[midtrain]` describes, or go on with it; the run's folder is its result's.

    Args:
        config: the recipe.
        reading: is told of the sources that are tokenised; closed before the training begins.
        progress: whether the training shows its own.

    Raises:
        UsageError: a source or the model cannot be used, or another process owns the run.
    """
    config.require("midtrain.train")
    with own_run(config, resume=True, name="midtrain") as folder:
        if folder.ledger.exists():
            raise UsageError(
                f"{folder.path}: a run of another kind is there", remedy="give another run.name"
            )
        with reading or nullcontext(Silent()) as told:
            began = any(folder.checkpoints.glob("step-*"))
            sets = source_sets(config, folder.path / "sets", began=began, progress=told)
        # Here and not above: this loads torch.
        from insitu.train.midtrain import midtrain

        return midtrain(midtrain_spec(config, folder, sets), progress=progress)


def midtrain_spec(config: Config, folder: RunFolder, sets: SourceSets) -> "MidtrainSpec":
    """The recipe as the trainer takes it; starts from `policy.model`, or from nothing."""
    from insitu.train.midtrain import MidtrainSpec
    from insitu.train.model import ModelShape
    from insitu.train.optimiser import AdamSpec

    section = config.midtrain
    return MidtrainSpec(
        out=str(folder.path),
        train=sets.train,
        held_out=sets.held_out,
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
