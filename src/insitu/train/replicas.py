"""One model on several CPU cores: a thread per core, each with its own gradient.

Every worker runs whole forward and backward passes on one core, with the same weights, and adds
its gradients to a buffer of its own. No barrier falls inside a pass, so a core that is taken
away for a moment does not hold up the others at every operation, which is what threads inside
operations suffer from on a busy machine. The work is dealt out by position, so the result is
the same every time for the same number of workers.
"""

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from insitu.train.model import PackedModel
from insitu.train.muon import MasterMuon
from insitu.train.optimiser import AdamSpec, MasterAdamW
from insitu.types import ConfigError

Work = TypeVar("Work")
Result = TypeVar("Result")


OPTIMISERS: dict[str, type[MasterAdamW]] = {"adamw": MasterAdamW, "muon": MasterMuon}


class Replicas:
    """A model, its optimiser and the threads that work on it."""

    def __init__(
        self,
        model: nn.Module,
        adam: AdamSpec,
        *,
        threads: int,
        dtype: str = "auto",
        optimiser: str = "adamw",
    ) -> None:
        """Take over `model`, whose parameters hold bf16 values from here on.

        Sets torch's number of threads inside operations to 1 for the process.

        Args:
            model: a decoder, float32.
            adam: the optimiser's constants.
            threads: CPU cores to use; 0: all that the process may use.
            dtype: of the arithmetic: `bfloat16`, `float32`, or `auto`: bfloat16 where the CPU
                has instructions for it, where it is two to three times as fast.
            optimiser: a name in `OPTIMISERS`.

        Raises:
            ConfigError: no such optimiser.
        """
        if optimiser not in OPTIMISERS:
            known = ", ".join(OPTIMISERS)
            raise ConfigError(f"no optimiser {optimiser!r}", remedy=f"use one of {known}")
        torch.set_num_threads(1)
        threads = threads or len(os.sched_getaffinity(0))
        models = [model, *(copy.deepcopy(model) for _ in range(threads - 1))]
        self.model = model
        self.optimiser = OPTIMISERS[optimiser](models, adam, compute=_compute(dtype))
        self.packed = [PackedModel(m) for m in models]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="train")

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.packed)

    def map(self, job: Callable[[PackedModel, Work], Result], work: Sequence[Work]) -> list[Result]:
        """`job` on every piece of `work`, in its order; worker i takes pieces i, i + count, …"""

        def run(i: int) -> list[Result]:
            return [job(self.packed[i], piece) for piece in work[i :: self.count]]

        if self.count == 1:
            return run(0)
        parts = list(self._pool.map(run, range(self.count)))
        return [parts[i % self.count][i // self.count] for i in range(len(work))]


def _compute(dtype: str) -> torch.dtype:
    if dtype == "auto":
        dtype = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    named: torch.dtype = getattr(torch, dtype)
    return named
