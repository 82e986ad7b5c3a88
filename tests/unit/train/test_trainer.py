import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pocket import make_model
from tests.unit.train.made import batch, sample
from transformers import AutoModelForCausalLM, AutoTokenizer

from insitu.train.checkpoint import write_checkpoint
from insitu.train.optimiser import AdamSpec
from insitu.train.trainer import Trainer, TrainerSpec
from insitu.types import CorruptError, Sample, Segment, TrainError, UsageError
from insitu.weights.store import WeightStore


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_model(tmp_path_factory.mktemp("base") / "model"))


def spec(model: str, **changes) -> TrainerSpec:
    return TrainerSpec(**{"model": model, "lr": 1e-3, "dtype": "float32"} | changes)


def weights(trainer: Trainer) -> dict[str, bytes]:
    return {name: bytes(t.data) for name, t in trainer.tensors().items()}


def test_the_gradient_is_the_formulas_in_float64(model):
    """One plain descent step, against the whole computation written anew in float64."""
    samples = batch()
    adam = AdamSpec(clip=0.0, weight_decay=0.0)
    trainer = Trainer(spec(model, adam=adam, micro_tokens=100))
    seen = []
    original = trainer._replicas.optimiser.step
    trainer._replicas.optimiser.step = lambda lr: seen.append(gradients(trainer)) or original(lr)
    report = trainer.step(samples)

    stock = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).double()
    n = sum(s.segment.sampled for s in samples)
    total = torch.zeros((), dtype=torch.float64)
    for s in samples:
        ids = torch.tensor(s.segment.token_ids)
        logp = torch.log_softmax(stock(input_ids=ids[None]).logits[0], -1)
        at = torch.tensor([i for i, t in enumerate(s.segment.trainable) if t])
        pi = logp[at - 1, ids[at]]
        mu = torch.tensor(s.segment.logprobs, dtype=torch.float64)[at]
        moved = pi.detach().exp() - mu.exp()
        kept = ~(((moved > 0.2) & (s.advantage > 0)) | ((moved < -0.2) & (s.advantage < 0)))
        total = total + (1e-3 * (pi - mu) ** 2 - kept * s.advantage * (pi - mu).exp()).sum() / n
    total.backward()
    assert report.loss == pytest.approx(total.item(), rel=1e-4)
    for name, p in stock.named_parameters():
        torch.testing.assert_close(seen[0][name].double(), p.grad, rtol=2e-3, atol=2e-6, msg=name)


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    optimiser = trainer._replicas.optimiser
    start = optimiser.weights.data_ptr()
    out = {}
    for name, p in trainer._replicas.model.named_parameters():
        at = (p.data_ptr() - start) // optimiser.weights.element_size()
        out[name] = optimiser.grads[0][at : at + p.numel()].view(p.shape).clone()
    return out


def test_packing_does_not_change_the_step(model):
    whole, cut = (Trainer(spec(model, micro_tokens=m)) for m in (10_000, 60))
    reports = [t.step(batch()) for t in (whole, cut)]
    assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-5)
    norms = [r.metrics["grad_norm"] for r in reports]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_the_same_batches_give_the_same_bits_on_any_day(model):
    for dtype, threads in (("float32", 1), ("bfloat16", 2)):
        one, two = (Trainer(spec(model, dtype=dtype, threads=threads)) for _ in range(2))
        for step in range(3):
            a, b = one.step(batch(step)), two.step(batch(step))
            assert a.loss == b.loss
            assert a.metrics["grad_norm"] == b.metrics["grad_norm"]
        assert weights(one) == weights(two)


def test_resume_is_exact(model, tmp_path: Path):
    straight = Trainer(spec(model))
    expected = [straight.step(batch(s)).loss for s in range(5)]

    first = Trainer(spec(model))
    got = [first.step(batch(s)).loss for s in range(3)]
    first.save(tmp_path / "checkpoints")
    first.step(batch(3))  # Lost in the crash.
    second = Trainer(spec(model))
    assert second.resume(tmp_path / "checkpoints") == 3
    got += [second.step(batch(s)).loss for s in (3, 4)]
    assert got == expected
    assert weights(second) == weights(straight)


def test_a_damaged_checkpoint_is_passed_over(model, tmp_path: Path):
    trainer = Trainer(spec(model))
    for step in range(2):
        trainer.step(batch(step))
        newest = trainer.save(tmp_path)
    state = newest / "state.pt"
    state.write_bytes(state.read_bytes()[:-7])
    again = Trainer(spec(model))
    assert again.resume(tmp_path) == 1
    shutil.rmtree(newest)
    (tmp_path / ".step-00000002.0badcafe.part").mkdir()
    assert again.resume(tmp_path) == 1
    assert Trainer(spec(model)).resume(tmp_path / "none") == 0


def test_only_the_newest_checkpoints_are_kept(model, tmp_path: Path):
    trainer = Trainer(spec(model, keep_checkpoints=2))
    for step in range(4):
        trainer.step(batch(step, size=1))
        trainer.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_a_step_already_taken_is_not_taken_twice(model, tmp_path: Path):
    trainer = Trainer(spec(model))
    report = trainer.step(batch(), number=1)
    before = weights(trainer)
    assert trainer.step(batch(), number=1) == report
    assert weights(trainer) == before
    trainer.save(tmp_path)
    again = Trainer(spec(model))
    again.resume(tmp_path)
    assert again.step(batch(), number=1) == report
    with pytest.raises(TrainError, match="step 3 was asked for after step 1"):
        again.step(batch(), number=3)


def test_published_weights_are_the_ones_the_forward_pass_uses(model, tmp_path: Path):
    store = WeightStore(tmp_path / "w")
    store.adopt(Path(model))
    trainer = Trainer(spec(store.get(0).path))
    assert trainer.publish(store) == store.get(0)
    report = trainer.step(batch())
    version = trainer.publish(store)
    assert (version.number, version.step) == (1, 1)
    assert store.verify(1) == version
    stock = AutoModelForCausalLM.from_pretrained(version.path, dtype="auto")
    assert stock.dtype == torch.bfloat16
    live = dict(trainer._replicas.model.named_parameters())
    assert all(torch.equal(p.float(), live[n]) for n, p in stock.named_parameters())
    assert 0 < report.metrics["changed_share"] < 1
    assert AutoTokenizer.from_pretrained(version.path).encode("x")


def test_export_is_a_model_folder(model, tmp_path: Path):
    trainer = Trainer(spec(model))
    trainer.step(batch())
    trainer.export(tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").is_file()
    assert weights(Trainer(spec(str(tmp_path / "out")))) == weights(trainer)


def test_the_report_says_what_was_done(model):
    trainer = Trainer(spec(model, warmup_steps=4))
    samples = batch()
    old = sample(50, seed=77, version=-1)
    late = Sample(segment=old.segment, advantage=0.0, lag=3)
    m = trainer.step([*samples, late]).metrics
    everything = [*samples, late]
    assert m["tokens"] == sum(len(s.segment.token_ids) for s in everything)
    assert m["trainable_tokens"] == sum(s.segment.sampled for s in everything)
    assert m["lag_max"] == 3
    assert m["lag_mean"] == pytest.approx(3 / 7)
    assert m["lr"] == pytest.approx(1e-3 / 4)
    assert m["skipped"] == 0
    assert 0 < m["entropy"] < np.log(512)
    assert m["k3"] > 0
    assert "k3_fresh" in m
    assert m["ratio_min"] < m["ratio_mean"] < m["ratio_max"]


def test_a_step_lowers_the_loss_of_its_batch(model):
    trainer = Trainer(spec(model, lr=1e-4))
    losses = [trainer.step(batch()).loss for _ in range(2)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("broken", ["nothing trainable", "not finite"])
def test_a_batch_that_teaches_nothing_is_a_step_that_changes_nothing(model, broken):
    trainer = Trainer(spec(model))
    before = weights(trainer)
    one = sample(30, seed=1, advantage=float("nan") if broken == "not finite" else 1.0)
    if broken == "nothing trainable":
        segment = Segment(
            token_ids=one.segment.token_ids,
            trainable=(False,) * 30,
            logprobs=(0.0,) * 30,
            versions=(-1,) * 30,
        )
        one = Sample(segment=segment, advantage=1.0)
    report = trainer.step([one])
    assert report.metrics["skipped"] == 1
    assert report.version == trainer.version == 1
    assert weights(trainer) == before
    assert trainer.step(batch(1)).metrics["skipped"] == 0


def test_bad_models_are_refused_in_one_line(tmp_path: Path, model):
    with pytest.raises(UsageError, match="no model"):
        Trainer(spec(str(tmp_path)))
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptError, match="damaged"):
        Trainer(spec(str(folder)))


def test_a_full_disk_is_told_and_leaves_the_older_checkpoint(tmp_path: Path):
    state = {"weights": torch.zeros(50_000)}
    write_checkpoint(tmp_path, 1, state)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_checkpoint(tmp_path, 2, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
