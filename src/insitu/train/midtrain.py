"""Mid-training: a model goes on learning from token sets.

    python -m insitu.train.midtrain SPEC.toml

A run's folder holds `metrics.jsonl`, `checkpoints/step-N/` and, at the end, `model/`, a Hugging
Face folder. Started again, a run goes on from its newest whole checkpoint with the same losses
as if it had never stopped.
"""

import json
import math
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from insitu.kit.atomic import write_atomic
from insitu.render.tokenizer import FastTokenizer
from insitu.train.checkpoint import newest_checkpoint, read_checkpoint, write_checkpoint
from insitu.train.model import ModelShape, PackedModel, create, load_model, save
from insitu.train.optimiser import SCHEDULES, AdamSpec
from insitu.train.packing import Document, Packed, pack, split_evenly
from insitu.train.replicas import Replicas
from insitu.train.token_sets import Mixture, TokenSet, TokenSource, held_out_documents
from insitu.types import ConfigError, UsageError


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class MidtrainSpec:
    """One mid-training run.

    Example: `MidtrainSpec(out="runs/base", tokenizer="tok", shape=ModelShape(),
    train=(TokenSource(folder="sets/code"),), max_tokens=50_000_000)`.
    """

    out: str
    """The run's folder."""
    train: tuple[TokenSource, ...]
    held_out: tuple[TokenSource, ...] = ()
    """Evaluated apart, each on the same documents every time; weights are not used."""
    init: str = ""
    """Hugging Face folder to start from; empty: a new model of `shape`."""
    shape: ModelShape = field(default_factory=ModelShape)
    tokenizer: str = ""
    """Folder whose tokenizer files go into the result; empty: `init`'s."""
    seed: int = 0
    threads: int = 1
    """CPU cores to use."""
    batch_tokens: int = 16_384
    """Tokens per optimiser step (whole documents: the fewest that hold so many)."""
    micro_tokens: int = 4096
    """Tokens per forward and backward pass; bounds memory, does not change the result."""
    context: int = 2048
    """Longer documents are cut into pieces of so many tokens."""
    max_tokens: int = 10_000_000
    max_wall_s: float = math.inf
    """Of training, all sessions of the run together. Where it would end the run before
    `max_tokens`, the schedule is shortened in time, so that the decay is never cut off."""
    lr: float = 1e-3
    schedule: str = "wsd"
    """`wsd` or `cosine`."""
    warmup: float = 0.02
    """Share of the run."""
    decay: float = 0.25
    """Share of the run (`wsd`); also when sources' `decay_weight` holds."""
    lr_floor: float = 0.02
    """The last learning rate as a share of `lr`."""
    optimiser: str = "adamw"
    """`adamw`, or `muon`, which learns more from each token of a new small model."""
    adam: AdamSpec = field(default_factory=AdamSpec)
    eval_every: int = 100
    """Steps; 0: only at the end."""
    eval_tokens: int = 32_768
    """Per held-out set."""
    save_every_s: float = 300.0
    log_every: int = 10
    """Steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MidtrainResult:
    """What a run came to."""

    model: str
    """The Hugging Face folder."""
    steps: int
    tokens: int
    wall_s: float
    loss: float
    """Mean training loss of the last `log_every` steps, nats per target token."""
    held_out: dict[str, float]
    """Nats per target token, by the set's name."""


def read_spec(path: Path) -> MidtrainSpec:
    """Read a TOML file with `MidtrainSpec`'s keys.

    Raises:
        ConfigError: no such file, not TOML, an unknown key or a wrong value.
    """
    try:
        return TypeAdapter(MidtrainSpec).validate_python(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as e:
        raise ConfigError(f"{path}: {e}", remedy="see MidtrainSpec for the keys") from e


def midtrain(spec: MidtrainSpec, *, progress: bool = True) -> MidtrainResult:
    """Train, or go on training, until the run is done; then write the model.

    Raises:
        UsageError: see `Mixture`, `load_model`, `PackedModel`.
    """
    if spec.schedule not in SCHEDULES:
        raise ConfigError(f"no schedule {spec.schedule!r}", remedy="use wsd or cosine")
    run = _Run(spec)
    with _bar(spec, enabled=progress) as tell:
        while not run.done:
            run.step()
            tell(run)
            if run.at % spec.log_every == 0 or run.done:
                run.log()
            if time.monotonic() - run.saved_at > spec.save_every_s:
                run.checkpoint()
    return run.finish()


_SLACK = 1.25
"""The first estimate of a run's tokens is this much too long: a run may get faster, and one that
is too long is shortened in the end."""


class _Run:
    def __init__(self, spec: MidtrainSpec) -> None:
        self.spec, self.out = spec, Path(spec.out)
        self.side = Path(spec.tokenizer or spec.init) if spec.tokenizer or spec.init else None
        if self.side is not None:
            FastTokenizer(self.side)  # tried now: the result would be of no use without one
        self.data = Mixture(spec.train, seed=spec.seed, context=spec.context)
        self.held_out = {
            s.name or Path(s.folder).name: TokenSet(Path(s.folder)) for s in spec.held_out
        }
        self.replicas = Replicas(
            _start(spec), spec.adam, threads=spec.threads, optimiser=spec.optimiser
        )
        self.at, self.tokens, self.wall_s = 0, 0, 0.0
        self.horizon, self.estimated = spec.max_tokens, False
        self.recent: list[dict[str, float]] = []
        self.saved_at = time.monotonic()
        if (newest := newest_checkpoint(self.out / "checkpoints")) is not None:
            self._restore(read_checkpoint(newest))
        _truncate_metrics(self.out / "metrics.jsonl", self.at)

    @property
    def done(self) -> bool:
        return self.tokens >= self.horizon

    @property
    def progress(self) -> float:
        return min(1.0, self.tokens / self.horizon)

    def step(self) -> None:
        began = time.monotonic()
        spec = self.spec
        decaying = self.progress > 1 - spec.decay
        documents = self.data.take(spec.batch_tokens, decaying=decaying)
        packs = _packs(documents, spec.micro_tokens, self.replicas.count)
        targets = max(1, sum(len(p.targets) for p in packs))

        def learn(model: PackedModel, packed: Packed) -> float:
            total, _ = model.loss(packed)
            (total / targets).backward()  # type: ignore[no-untyped-call]
            return float(total.detach()) / targets

        loss = sum(self.replicas.map(learn, packs))
        lr = spec.lr * SCHEDULES[spec.schedule](
            self.progress, warmup=spec.warmup, decay=spec.decay, floor=spec.lr_floor
        )
        norm = self.replicas.optimiser.step(lr)
        seen = sum(len(p.ids) for p in packs)
        self.at, self.tokens = self.at + 1, self.tokens + seen
        took = time.monotonic() - began
        self.wall_s += took
        self._shorten()
        row = {
            "loss": loss,
            "grad_norm": norm,
            "lr": lr,
            "tokens": seen,
            "targets": targets,
            "s": took,
        }
        self.recent = [*self.recent, row][-self.spec.log_every :]

    def _shorten(self) -> None:
        # Twice, where the wall time limits the run: a first estimate, so that the warm-up has its
        # share, and the end, when the decay's share of the time is all that is left. The horizon
        # is part of the checkpoint, so that a resumed run follows the same schedule.
        spec, share = self.spec, 1 - self.spec.decay
        if not self.estimated and self.wall_s >= spec.warmup * spec.max_wall_s:
            likely = _SLACK * self.tokens * spec.max_wall_s / self.wall_s
            self.horizon = int(min(self.horizon, likely))
            self.estimated = True
        if self.wall_s >= share * spec.max_wall_s and self.tokens < share * self.horizon:
            self.horizon = int(self.tokens / share)

    def log(self) -> None:
        rows, spec = self.recent, self.spec
        seconds = sum(r["s"] for r in rows)
        row: dict[str, Any] = {
            "step": self.at,
            "tokens": self.tokens,
            "wall_s": round(self.wall_s, 2),
            "loss": sum(r["loss"] for r in rows) / len(rows),
            "grad_norm": rows[-1]["grad_norm"],
            "lr": rows[-1]["lr"],
            "tokens_per_s": sum(r["tokens"] for r in rows) / seconds,
            "targets": rows[-1]["targets"],
            "epochs": self.data.epochs,
        }
        if spec.eval_every and self.at % spec.eval_every < spec.log_every:
            row["held_out"] = self.evaluate()
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "metrics.jsonl").open("a") as f:
            f.write(json.dumps(row) + "\n")

    def evaluate(self) -> dict[str, float]:
        return {n: held_out_loss(self.replicas, s, self.spec) for n, s in self.held_out.items()}

    def checkpoint(self) -> None:
        state = {
            "optimiser": self.replicas.optimiser.state(),
            "data": self.data.state(),
            "at": self.at,
            "tokens": self.tokens,
            "wall_s": self.wall_s,
            "horizon": self.horizon,
            "estimated": self.estimated,
            "recent": self.recent,
        }
        write_checkpoint(self.out / "checkpoints", self.at, state)
        self.saved_at = time.monotonic()

    def _restore(self, state: dict[str, Any]) -> None:
        self.replicas.optimiser.restore(state["optimiser"])
        self.data.restore(state["data"])
        self.at, self.tokens, self.wall_s = state["at"], state["tokens"], state["wall_s"]
        self.recent = state["recent"]
        self.horizon = min(state["horizon"], self.spec.max_tokens)
        self.estimated = bool(state.get("estimated", True))

    def finish(self) -> MidtrainResult:
        self.checkpoint()
        save(self.replicas.model, self.out / "model", side_files=self.side)
        rows = self.recent
        result = MidtrainResult(
            model=str(self.out / "model"),
            steps=self.at,
            tokens=self.tokens,
            wall_s=self.wall_s,
            loss=sum(r["loss"] for r in rows) / max(1, len(rows)),
            held_out=self.evaluate(),
        )
        write_atomic(self.out / "result.json", json.dumps(asdict(result), indent=2))
        return result


def held_out_loss(replicas: Replicas, token_set: TokenSet, spec: MidtrainSpec) -> float:
    """Mean loss of a held-out set's held_out_documents, nats per target token."""

    def measure(model: PackedModel, packed: Packed) -> tuple[float, int]:
        with torch.no_grad():
            total, each = model.loss(packed)
        return float(total), len(each)

    documents = list(held_out_documents(token_set, spec.context, spec.eval_tokens))
    parts = replicas.map(measure, _packs(documents, spec.micro_tokens, replicas.count))
    return sum(t for t, _ in parts) / max(1, sum(n for _, n in parts))


def _packs(documents: Sequence[Document], limit: int, workers: int) -> list[Packed]:
    runs = split_evenly([len(ids) for ids, _ in documents], limit, multiple=workers)
    return [pack([documents[i] for i in r]) for r in runs]


def _start(spec: MidtrainSpec) -> nn.Module:
    if spec.init:
        return load_model(Path(spec.init), seed=spec.seed)
    return create(spec.shape, seed=spec.seed)


def _truncate_metrics(path: Path, at: int) -> None:
    """Drop what was logged after the checkpoint: those steps happen again."""
    if path.is_file():
        kept = []
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["step"] <= at:
                    kept.append(line + "\n")
            except ValueError:
                break  # A line that a kill cut off; nothing whole follows it.
        write_atomic(path, "".join(kept))


class _bar:  # noqa: N801
    """Shows progress on a terminal, one line per `log_every` steps elsewhere."""

    def __init__(self, spec: MidtrainSpec, *, enabled: bool) -> None:
        self.spec, self.enabled = spec, enabled
        self.bar = Progress(
            TextColumn("mid-training"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}% {task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            disable=not (enabled and sys.stderr.isatty()),
        )
        self.task = self.bar.add_task("", total=1.0)

    def __enter__(self) -> Callable[[_Run], None]:
        self.bar.start()
        return self.tell

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tell(self, run: _Run) -> None:
        last = run.recent[-1]
        text = (
            f"step {run.at} loss {last['loss']:.3f} {last['tokens'] / last['s']:,.0f} tok/s "
            f"{run.tokens / 1e6:.2f}/{run.horizon / 1e6:.1f} M tokens"
        )
        self.bar.update(self.task, completed=run.progress, description=text)
        if self.enabled and not sys.stderr.isatty() and run.at % self.spec.log_every == 0:
            left = run.wall_s * (1 / max(run.progress, 1e-9) - 1)
            sys.stderr.write(f"{text}, {left / 60:.0f} min left\n")


def main() -> None:
    """`python -m insitu.train.midtrain SPEC.toml`."""
    try:
        if len(sys.argv) != 2:
            raise UsageError("give one file", remedy="python -m insitu.train.midtrain SPEC.toml")
        result = midtrain(read_spec(Path(sys.argv[1])))
    except UsageError as e:
        sys.stderr.write(f"{e}\n")
        sys.exit(2)
    sys.stdout.write(json.dumps(asdict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
