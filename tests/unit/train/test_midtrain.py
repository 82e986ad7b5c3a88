import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.pocket import make_tokenizer
from transformers import AutoModelForCausalLM

import insitu.train.midtrain as module
from insitu.corpus.tokenset import TokenDocument, write_token_set
from insitu.train.midtrain import MidtrainSpec, midtrain, read_spec
from insitu.train.model import ModelShape
from insitu.train.optimiser import cosine, wsd
from insitu.train.token_sets import Mixture, TokenSet, TokenSource, held_out_documents
from insitu.types import ConfigError, CorruptError, UsageError

TINY = ModelShape(hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=64, vocabulary=64)


def make_set(folder: Path, count: int, seed: int) -> str:
    """Documents that count upwards: soon learnt."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        n = int(rng.integers(20, 90))
        ids = (rng.integers(64) + np.arange(n)) % 64
        loss = rng.random(n) < 0.8
        documents.append(TokenDocument(ids=tuple(ids.tolist()), loss=tuple(loss.tolist())))
    write_token_set(documents, folder)
    return str(folder)


@pytest.fixture
def spec(tmp_path: Path) -> MidtrainSpec:
    return MidtrainSpec(
        out=str(tmp_path / "run"),
        train=(
            TokenSource(folder=make_set(tmp_path / "a", 200, 0), weight=0.75),
            TokenSource(folder=make_set(tmp_path / "b", 30, 1), weight=0.25, decay_weight=0.9),
        ),
        held_out=(TokenSource(folder=make_set(tmp_path / "h", 20, 2)),),
        shape=TINY,
        batch_tokens=512,
        micro_tokens=256,
        max_tokens=12_000,
        lr=1e-2,
        log_every=2,
        eval_every=4,
        save_every_s=0.0,
    )


def rows(out: str) -> list[tuple[object, ...]]:
    keys = ("step", "tokens", "loss", "grad_norm", "lr", "held_out")
    lines = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    return [tuple(row.get(k) for k in keys) for row in lines]


def test_a_run_learns_and_leaves_a_model(spec: MidtrainSpec):
    result = midtrain(spec, progress=False)
    losses = [r[2] for r in rows(spec.out)]
    assert losses[-1] < 0.8 * losses[0]
    assert result.held_out["h"] < 0.8 * np.log(64)
    assert spec.max_tokens <= result.tokens < spec.max_tokens + 1024
    model = AutoModelForCausalLM.from_pretrained(result.model)
    assert model.config.vocab_size == 64
    again = midtrain(spec, progress=False)
    assert (again.steps, again.tokens) == (result.steps, result.tokens)


@pytest.mark.parametrize(("threads", "optimiser"), [(1, "muon"), (2, "adamw")])
def test_a_stopped_run_goes_on_with_the_same_losses(
    spec: MidtrainSpec, tmp_path: Path, threads: int, optimiser: str
):
    spec = replace(spec, threads=threads, optimiser=optimiser, max_tokens=9_000)
    midtrain(spec, progress=False)
    parted = replace(spec, out=str(tmp_path / "parted"))

    class StopError(Exception):
        pass

    step = module._Run.step
    for after in (7, 5):
        left = [after]

        def counted(self, left=left):
            if left[0] == 0:
                raise StopError
            left[0] -= 1
            step(self)

        module._Run.step = counted
        try:
            with pytest.raises(StopError):
                midtrain(parted, progress=False)
        finally:
            module._Run.step = step
    with (tmp_path / "parted/metrics.jsonl").open("a") as f:
        f.write('{"step": 99, "lo')  # As a kill in the middle of a line leaves it.
    midtrain(parted, progress=False)
    assert rows(parted.out) == rows(spec.out)
    name = "model/model.safetensors"
    assert (tmp_path / "parted" / name).read_bytes() == (Path(spec.out) / name).read_bytes()


def test_kill_9_and_again(spec: MidtrainSpec, tmp_path: Path):
    killed = replace(spec, out=str(tmp_path / "killed"), max_tokens=8_000)
    path = tmp_path / "spec.toml"
    sets = ", ".join(f'{{folder="{s.folder}", weight={s.weight}}}' for s in killed.train)
    path.write_text(
        f'out = "{killed.out}"\ntrain = [{sets}]\nbatch_tokens = 512\nmicro_tokens = 256\n'
        "max_tokens = 8_000\nsave_every_s = 0.0\nlog_every = 2\n"
        "shape = {hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=64, vocabulary=64}\n"
    )
    command = [sys.executable, "-m", "insitu.train.midtrain", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not list(Path(killed.out).glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    result = midtrain(read_spec(path), progress=False)
    straight = midtrain(replace(read_spec(path), out=str(tmp_path / "straight")), progress=False)
    assert rows(killed.out) == rows(str(tmp_path / "straight"))
    assert result.loss == straight.loss


def test_a_wall_time_limit_shortens_the_schedule(spec: MidtrainSpec, monkeypatch):
    ticks = itertools.count(step=0.05)  # Each step looks at the clock twice, and once to save.
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(module, "time", clock)
    late = replace(spec, max_tokens=10**9, max_wall_s=1.0, log_every=1)
    late = replace(late, save_every_s=1e9, warmup=0.1)
    result = midtrain(late, progress=False)
    rates = [r[4] for r in rows(spec.out)]
    assert result.steps == pytest.approx(20, abs=3)
    assert max(rates) == rates[len(rates) // 2] == spec.lr
    assert rates[-1] < 0.3 * spec.lr


def test_a_second_stage_starts_from_the_firsts_model(spec: MidtrainSpec, tmp_path: Path):
    first = midtrain(spec, progress=False)
    make_tokenizer(Path(first.model))
    later = replace(spec, init=first.model, out=str(tmp_path / "two"), max_tokens=600, lr=1e-4)
    second = midtrain(later, progress=False)
    assert second.held_out["h"] < first.held_out["h"] * 1.2
    assert (Path(second.model) / "tokenizer.json").is_file()


def test_specs_are_read_and_refused(tmp_path: Path):
    path = tmp_path / "s.toml"
    path.write_text('out = "x"\ntrain = [{folder = "a"}]\nlearning_rate = 1.0\n')
    with pytest.raises(ConfigError, match="learning_rate"):
        read_spec(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_spec(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="no schedule"):
        midtrain(MidtrainSpec(out="x", train=(), schedule="linear"))


def test_an_unknown_optimiser_is_refused(spec: MidtrainSpec):
    with pytest.raises(ConfigError, match="no optimiser 'sgd'"):
        midtrain(replace(spec, optimiser="sgd"))


def test_schedules():
    shape = {"warmup": 0.1, "decay": 0.2, "floor": 0.05}
    for schedule in (wsd, cosine):
        assert schedule(0.0, **shape) == 0
        assert schedule(0.1, **shape) == pytest.approx(1)
        assert schedule(1.0, **shape) == pytest.approx(0.05)
    assert wsd(0.8, **shape) == 1
    assert wsd(0.9, **shape) == pytest.approx(0.05 + 0.95 / 2)


def test_a_mixture_keeps_its_shares_and_its_place(spec: MidtrainSpec):
    def fresh() -> Mixture:
        return Mixture(spec.train, seed=3, context=64)

    mixture = fresh()
    first = mixture.take(6000)
    assert sum(len(ids) for ids, _ in first) >= 6000
    assert max(len(ids) for ids, _ in first) <= 64
    sizes = [TokenSet(Path(s.folder)).tokens for s in spec.train]
    read = [e * n for e, n in zip(mixture.epochs, sizes, strict=True)]
    assert read[0] / sum(read) == pytest.approx(0.75, abs=0.03)
    resumed = fresh()
    resumed.restore(json.loads(json.dumps(mixture.state())))
    for decaying in (False, True):
        expected, got = (m.take(500, decaying=decaying) for m in (mixture, resumed))
        for (a, _), (b, _) in zip(expected, got, strict=True):
            assert (a == b).all()
    before = mixture.epochs
    mixture.take(4000, decaying=True)
    read = [(b - a) * n for a, b, n in zip(before, mixture.epochs, sizes, strict=True)]
    assert read[1] / sum(read) == pytest.approx(0.9 / 1.65, abs=0.05)


def test_orders_differ_by_seed_and_by_epoch(tmp_path: Path):
    source = (TokenSource(folder=make_set(tmp_path / "s", 40, 0)),)
    tokens = TokenSet(tmp_path / "s").tokens
    once = Mixture(source, seed=1, context=999)
    epochs = [[tuple(ids) for ids, _ in once.take(tokens)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    other = [tuple(ids) for ids, _ in Mixture(source, seed=2, context=999).take(tokens)]
    assert other != epochs[0]


def test_damaged_token_sets_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match="no token set"):
        TokenSet(tmp_path)
    make_set(tmp_path / "s", 5, 0)
    tokens = tmp_path / "s/tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(CorruptError, match="cut short"):
        TokenSet(tmp_path / "s")
    tokens.write_bytes(whole)
    np.save(tmp_path / "s/index.npy", np.array([[0, 10**6]]))
    with pytest.raises(CorruptError, match="points outside"):
        TokenSet(tmp_path / "s")
    (tmp_path / "s/mask.bin").unlink()
    with pytest.raises(CorruptError, match="cannot be read"):
        TokenSet(tmp_path / "s")
    with pytest.raises(UsageError, match="weights above 0"):
        Mixture((), seed=0, context=8)


def test_a_probe_is_the_same_every_time(tmp_path: Path):
    token_set = TokenSet(Path(make_set(tmp_path / "s", 30, 0)))
    one, two = (list(held_out_documents(token_set, 999, 400)) for _ in range(2))
    assert sum(len(ids) for ids, _ in one) <= 400
    assert [ids.tolist() for ids, _ in one] == [ids.tolist() for ids, _ in two]
    assert len(list(held_out_documents(token_set, 999, 1))) == 1
