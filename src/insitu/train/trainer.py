"""The RL step: samples in, new weights out."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from insitu.kit.codec import from_json, to_json
from insitu.train.checkpoint import newest_checkpoint, read_checkpoint, write_checkpoint
from insitu.train.losses import Objective, TokenStats, open_objective
from insitu.train.model import PackedModel, load_model, save
from insitu.train.optimiser import AdamSpec
from insitu.train.packing import Packed, pack, split_evenly
from insitu.train.replicas import Replicas
from insitu.types import PolicyVersion, Sample, StepReport, TrainError
from insitu.weights.raw import TensorBytes
from insitu.weights.store import WeightStore

_REPORTS_KEPT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSpec:
    """How a policy is trained by RL.

    Example: `TrainerSpec(model="runs/demo/weights/v000000", lr=1e-5)`.
    """

    model: str
    """Hugging Face folder of the base policy, version 0."""
    lr: float = 1e-5
    warmup_steps: int = 0
    """Steps over which the learning rate rises to `lr`; then it is constant."""
    adam: AdamSpec = field(default_factory=lambda: AdamSpec(beta2=0.999, weight_decay=0.01))
    loss: str = "dppo_tv"
    """A name in `insitu.train.losses.OBJECTIVES`."""
    loss_options: dict[str, float] = field(default_factory=dict)
    """The objective's constants where they differ from its defaults."""
    temperature: float = 1.0
    """At which the engine samples; the recorded log-probabilities are those of it."""
    micro_tokens: int = 4096
    """Tokens per forward and backward pass; bounds memory, does not change the result."""
    threads: int = 1
    """CPU cores; 0: all."""
    dtype: str = "auto"
    """Of the arithmetic: `bfloat16`, `float32`, `auto`. The weights are bf16 values in any case."""
    keep_checkpoints: int = 2


@dataclass(frozen=True, slots=True)
class _Batch:
    """Packed samples, and per target what the objective needs."""

    packed: Packed
    mu: Tensor
    advantage: Tensor
    fresh: Tensor


class Trainer:
    """One policy and its optimiser; `version` counts the steps done.

    Float32 masters, and a forward pass with the bf16 weights that are published. The same
    batches give the same weights on the same machine, whatever happened between.
    """

    def __init__(self, spec: TrainerSpec) -> None:
        """Load the base policy.

        Raises:
            UsageError: see `load_model`, `PackedModel`, `open_objective`.
        """
        self.spec = spec
        self._objective: Objective = open_objective(spec.loss, spec.loss_options)
        model = load_model(Path(spec.model))
        self._replicas = Replicas(model, spec.adam, threads=spec.threads, dtype=spec.dtype)
        self._reports: list[StepReport] = []
        self.version = 0

    def step(self, samples: Sequence[Sample], *, number: int | None = None) -> StepReport:
        """Take one optimiser step on `samples`.

        Segments are packed end to end; the gradient is that of the mean over all trainable
        tokens, however they are packed. With `number`, the step to take: one that was already
        taken is not taken twice, its report is returned.

        A batch without a trainable token, or one whose gradient is not finite, is a step that
        leaves the weights as they are and reports `skipped` 1: tried again, it would end alike.

        Raises:
            TrainError: a number that does not follow the steps taken.
        """
        if number is not None and number != self.version + 1:
            return self._again(number)
        began = time.monotonic()
        batches = self._pack(samples)
        targets = sum(len(b.mu) for b in batches)
        stats = TokenStats()
        for part in self._replicas.map(partial(self._learn, targets=targets), batches):
            stats.add(part)
        lr = self.spec.lr * min(1.0, (self.version + 1) / max(1, self.spec.warmup_steps))
        norm, changed = self._update(lr) if targets else (0.0, 0.0)
        self.version += 1
        wall = time.monotonic() - began
        tokens = sum(len(b.packed.ids) for b in batches)
        report = StepReport(
            step=self.version,
            version=self.version,
            loss=stats.loss / max(1, targets),
            metrics={
                "grad_norm": norm,
                "lr": lr,
                "skipped": float(targets == 0 or not math.isfinite(norm)),
                "changed_share": changed,
                "tokens": tokens,
                "trainable_tokens": targets,
                "tokens_per_s": tokens / wall,
                **stats.metrics(),
                **_sample_metrics(samples),
            },
            wall_s=wall,
        )
        self._reports = [*self._reports, report][-_REPORTS_KEPT:]
        return report

    def publish(self, store: WeightStore) -> PolicyVersion:
        """Put the weights into `store` as version `self.version`; at once if they are there."""
        return store.publish(
            self.tensors(), number=self.version, step=self.version, side_files=Path(self.spec.model)
        )

    def tensors(self) -> Mapping[str, TensorBytes]:
        """The bf16 weights as published; tied tensors once."""
        seen: set[int] = set()
        out = {}
        for name, tensor in self._replicas.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                raw = tensor.detach().to(torch.bfloat16).contiguous().view(torch.uint8)
                data = memoryview(raw.reshape(-1).numpy()).toreadonly()
                out[name] = TensorBytes(dtype="BF16", shape=tuple(tensor.shape), data=data)
        return out

    def save(self, folder: Path) -> Path:
        """Write a checkpoint `folder/step-N`; return it. The newest few are kept."""
        state = {
            "version": self.version,
            "optimiser": self._replicas.optimiser.state(),
            "rng": torch.get_rng_state(),
            "reports": [to_json(r).decode() for r in self._reports],
        }
        return write_checkpoint(folder, self.version, state, keep=self.spec.keep_checkpoints)

    def resume(self, folder: Path) -> int:
        """Go on from the newest whole checkpoint in `folder`; without one, from the base.

        Returns:
            The version the trainer has now.
        """
        newest = newest_checkpoint(folder)
        if newest is not None:
            state = read_checkpoint(newest)
            self._replicas.optimiser.restore(state["optimiser"])
            torch.set_rng_state(state["rng"])
            self._reports = [from_json(StepReport, r) for r in state["reports"]]
            self.version = int(state["version"])
        return self.version

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder with the base's tokenizer files."""
        save(self._replicas.model, folder, side_files=Path(self.spec.model))

    def _again(self, number: int) -> StepReport:
        for report in self._reports:
            if report.step == number:
                return report
        raise TrainError(f"step {number} was asked for after step {self.version}")

    def _update(self, lr: float) -> tuple[float, float]:
        """The gradient's norm, and the share of the published weights that changed."""
        optimiser = self._replicas.optimiser
        before = optimiser.weights.clone()
        norm = optimiser.step(lr)
        return norm, float((before != optimiser.weights).double().mean())

    def _pack(self, samples: Sequence[Sample]) -> list[_Batch]:
        lengths = [len(s.segment.token_ids) for s in samples]
        if not lengths:
            return []
        runs = split_evenly(lengths, self.spec.micro_tokens, multiple=self._replicas.count)
        return [_batch([samples[i] for i in run], self.version) for run in runs]

    def _learn(self, model: PackedModel, batch: _Batch, targets: int) -> TokenStats:
        if len(batch.mu) == 0:
            return TokenStats()  # Nothing to learn here, and no row for the last layer.
        logp, entropies = model.logprobs(batch.packed, self.spec.temperature)
        terms, kept = self._objective(logp, batch.mu, batch.advantage)
        (terms.sum() / targets).backward()  # type: ignore[no-untyped-call]
        detached = logp.detach()
        return TokenStats.of(terms.detach(), kept, detached - batch.mu, entropies, batch.fresh)


def _batch(samples: Sequence[Sample], version: int) -> _Batch:
    packed = pack([(np.array(s.segment.token_ids), np.array(s.segment.trainable)) for s in samples])
    at = packed.targets
    lengths = [len(s.segment.token_ids) for s in samples]
    mu = np.concatenate([np.array(s.segment.logprobs, dtype=np.float32) for s in samples])
    versions = np.concatenate([np.array(s.segment.versions) for s in samples])
    advantage = np.repeat(np.array([s.advantage for s in samples], dtype=np.float32), lengths)
    return _Batch(
        packed,
        torch.from_numpy(mu[at]),
        torch.from_numpy(advantage[at]),
        torch.from_numpy(versions[at] == version),
    )


def _sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    lags = [s.lag for s in samples]
    return {
        "samples": len(samples),
        "lag_mean": sum(lags) / len(lags),
        "lag_max": max(lags),
        "advantage_abs_mean": sum(abs(s.advantage) for s in samples) / len(samples),
    }
