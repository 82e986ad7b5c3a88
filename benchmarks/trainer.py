"""insitu's train step against the Hugging Face Trainer: tokens per second on a CPU.

    python -m benchmarks.trainer --json FILE

Both train the demo's model (random weights) on the same segments of 300-900 tokens, about 15 %
of them trainable, with all cores, 16 segments to an optimiser step. insitu takes its RL step:
packed, masked policy gradient, entropies and all metrics. The Hugging Face Trainer does less,
plain cross-entropy on the same tokens, and is given its best of several settings: batches
padded to their longest, grouped by length; 2, 4 or 8 rows to a pass; bf16 autocast or weights in
bf16. Each runs in a process of its own, in turns; a ratio is the median over the rounds, also per second of processor time, which other
load on the machine disturbs less.
The first use installs accelerate into `.insitu/bench-envs`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import report

SEGMENTS = 48
"""Per measurement: three optimiser steps, after one that is not measured."""
PER_STEP = 16
LENGTHS = (300, 900)
TRAINABLE = 0.15
VOCABULARY = 4096
ROWS = (2, 4, 8)
PRECISIONS = ("autocast", "bf16 weights")
ROUNDS = 3
ACCELERATE = ("--no-deps", "accelerate==1.15.0", "psutil==7.*")


def segments() -> list[tuple[list[int], list[bool]]]:
    """Token ids and which are trainable, in spans as calls leave them."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(SEGMENTS):
        n = int(rng.integers(*LENGTHS))
        mask = np.zeros(n, dtype=bool)
        while mask.mean() < TRAINABLE:
            at = int(rng.integers(n // 4, n))
            mask[at : at + int(rng.integers(10, 40))] = True
        out.append((rng.integers(0, VOCABULARY, n).tolist(), mask.tolist()))
    return out


def make_model(folder: Path) -> None:
    """The demo's shape with random weights."""
    from insitu.train.model import ModelShape, create, save

    save(create(ModelShape(vocabulary=VOCABULARY), seed=0), folder)


def run_insitu(model: Path) -> tuple[float, float]:
    """Tokens per second, and per second of processor time, of `Trainer.step`."""
    from insitu.train.trainer import Trainer, TrainerSpec
    from insitu.types import Sample, Segment

    samples = [
        Sample(
            segment=Segment(
                token_ids=tuple(ids),
                trainable=tuple(mask),
                logprobs=tuple(-8.3 if m else 0.0 for m in mask),
                versions=tuple(0 if m else -1 for m in mask),
            ),
            advantage=(-1.0) ** i,
        )
        for i, (ids, mask) in enumerate(segments())
    ]
    trainer = Trainer(TrainerSpec(model=str(model), threads=0))
    trainer.step(samples[:PER_STEP])
    began = clocks()
    for at in range(0, SEGMENTS, PER_STEP):
        trainer.step(samples[at : at + PER_STEP])
    return rates(sum(len(s.segment.token_ids) for s in samples), began)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def rates(tokens: int, began: tuple[float, float]) -> tuple[float, float]:
    wall, processor = (b - a for a, b in zip(began, clocks(), strict=True))
    return tokens / wall, tokens / processor


def run_hf(model: Path, rows: int, precision: str) -> tuple[float, float]:
    """As `run_insitu`, of `transformers.Trainer`; padding is not counted."""
    import torch
    from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments
    from transformers import Trainer as HFTrainer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    data = [
        {"input_ids": ids, "labels": [t if m else -100 for t, m in zip(ids, mask, strict=True)]}
        for ids, mask in segments()
    ]

    def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(r["input_ids"]) for r in rows)

        def padded(key: str, fill: int) -> torch.Tensor:
            return torch.tensor([r[key] + [fill] * (longest - len(r[key])) for r in rows])

        mask = torch.tensor([[i < len(r["input_ids"]) for i in range(longest)] for r in rows])
        ids, labels = padded("input_ids", 0), padded("labels", -100)
        return {"input_ids": ids, "labels": labels, "attention_mask": mask.long()}

    class Clock(TrainerCallback):
        began: tuple[float, float] | None = None

        def on_step_end(self, args, state, control, **_: object) -> None:  # type: ignore[no-untyped-def]
            self.began = self.began or clocks()  # After the first step.

    dtype = torch.bfloat16 if precision == "bf16 weights" else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        HFTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=dtype),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                bf16=precision == "autocast",
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=PER_STEP // rows,
                train_sampling_strategy="group_by_length",
                max_steps=SEGMENTS // PER_STEP + 1,
                learning_rate=1e-5,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                dataloader_num_workers=0,
            ),
            train_dataset=data,
            data_collator=collate,
            callbacks=[clock],
        ).train()
        assert clock.began is not None
        # An epoch is three steps; the fourth, like the first, is of the mean size.
        return rates(sum(len(d["input_ids"]) for d in data), clock.began)


def child(job: list[str], extra: Path | None = None) -> tuple[float, float]:
    """Run one measurement in a process of its own; its last words are the two rates."""
    path = [str(Path.cwd()), *([str(extra)] if extra else []), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainer", "--child", json.dumps(job)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.trainer: {job} failed:\n{done.stderr[-2000:]}")
    wall, processor = done.stdout.split()[-2:]
    return float(wall), float(processor)


def compare(json_path: Path | None) -> None:
    on = report.machine()
    python = report.environment("hf-trainer", ACCELERATE)
    site = next(python.parent.parent.glob("lib/python3*/site-packages"))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model)
        settings = [(rows, p) for p in PRECISIONS for rows in ROWS]
        tried = {s: child(["hf", str(model), *map(str, s)], site) for s in settings}
        best = max(tried, key=lambda s: tried[s])
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(child(["insitu", str(model)]))
            theirs.append(child(["hf", str(model), *map(str, best)], site))
    pairs = list(zip(ours, theirs, strict=True))
    figures: dict[str, report.Figure] = {
        "insitu_tokens_per_s": statistics.median(wall for wall, _ in ours),
        "hf_trainer_tokens_per_s": statistics.median(wall for wall, _ in theirs),
        "ratio_vs_hf_trainer": statistics.median(a[0] / b[0] for a, b in pairs),
        "ratio_per_processor_second": statistics.median(a[1] / b[1] for a, b in pairs),
        "insitu_tokens_per_processor_s": statistics.median(cpu for _, cpu in ours),
        "hf_trainer_setting": f"{best[0]} rows, {best[1]}",
        **{f"hf_{rows}_rows_{p.replace(' ', '_')}": v[0] for (rows, p), v in tried.items()},
    }
    print(report.table(["figure", "value"], [[k, v] for k, v in figures.items()]))
    report.write("trainer", figures, json_path, on=on)


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--child", help="used by the benchmark itself")
    args = parser.parse_args()
    if args.child is None:
        compare(args.json)
        return
    kind, model, *rest = json.loads(args.child)
    if kind == "insitu":
        print(*run_insitu(Path(model)))
    else:
        print(*run_hf(Path(model), int(rest[0]), rest[1]))


if __name__ == "__main__":
    main()
