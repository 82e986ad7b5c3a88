"""`insitu midtrain` from sources: made once, gone on with exactly, owned by one process."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from insitu.cli.main import app
from insitu.config.load import load, load_values
from insitu.config.tree import Config
from insitu.flows.midtrain import run_midtrain
from insitu.flows.progress import Silent
from insitu.flows.sources import SourceSets, source_sets
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.types import ConfigError, UsageError
from tests.pocket import make_model, make_tokenizer
from tests.unit.ledger.made import make_episode, make_group

SHAPE = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 64}
FUNCTION = "def name_{i}(x):\n    return x + {i}\n\n\n"


class Told(Silent):
    """Keeps what a flow says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, total: int | None) -> None:
        self.lines.append(f"{name} {total}")

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for n in range(8):
        text = "".join(FUNCTION.format(i=100 * n + i) for i in range(12))
        (folder / f"m{n}.py").write_text(text)
    return folder


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    path.write_text(json.dumps({"messages": talk}) + "\n")
    return path


Make = Callable[..., Config]


@pytest.fixture
def recipe(tmp_path: Path, tokenizer: Path, code: Path) -> Make:
    def make(**changes: Any) -> Config:
        values = {
            "tokenizer": str(tokenizer),
            "train": [{"code": str(code)}],
            "shape": SHAPE | {"vocabulary": 512},
            "context": 128,
            "max_tokens": 1500,
            "batch_tokens": 256,
            "micro_tokens": 256,
            "threads": 1,
            "save_every_s": 1e-6,
        }
        run = {"name": "r", "folder": str(tmp_path / "runs")}
        return load_values({"run": run, "midtrain": values | changes}, (), source="test")

    return make


def sets_of(config: Config, *, began: bool = False, told: Told | None = None) -> SourceSets:
    sets = Path(config.run.folder) / "r" / "sets"
    return source_sets(config, sets, began=began, progress=told or Told())


def meta(folder: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((Path(folder) / "meta.json").read_text())
    return value


def test_each_kind_of_source_becomes_a_token_set(recipe: Make, code: Path, talks: Path) -> None:
    ready = sets_of(recipe()).train[0].folder
    (code / "bad.py").write_bytes(b"\xff")
    train = [
        {"folder": ready, "weight": 0.5},
        {"code": str(code), "suffixes": [".py"]},
        {"transcripts": str(talks), "decay_weight": 2.0},
    ]
    told = Told()
    made = sets_of(recipe(train=train, held_out=[ready, {"transcripts": str(talks)}]), told=told)
    assert [s.weight for s in made.train] == [0.5, 1.0, 1.0]
    assert made.train[0].folder == ready
    assert made.train[2].decay_weight == 2.0
    of_code, of_talks = (meta(s.folder) for s in made.train[1:])
    assert of_code["languages"] == {"python": 8}
    assert of_code["left_out"] == {"not UTF-8": 1}
    assert of_code["targets"] == of_code["tokens"]
    assert np.load(Path(made.train[1].folder) / "index.npy")[:, 1].max() <= 128
    assert of_talks["documents"] == of_talks["conversations"] == 1
    assert 0 < of_talks["targets"] < of_talks["tokens"]
    assert [s.name for s in made.held_out] == [Path(ready).name, "talks"]
    assert made.held_out[1].folder == made.train[2].folder
    assert any("8 files (python 8; left out: 1 not UTF-8)" in line for line in told.lines)
    assert f"tokens of {talks}, conversations 1" in told.lines


def test_a_set_is_made_once_and_follows_its_source_until_the_run_begins(
    recipe: Make, code: Path
) -> None:
    config = recipe()
    first = sets_of(config)
    again = Told()
    assert sets_of(config, told=again) == first
    assert again.lines == []
    (code / "m0.py").write_text("x = 1\n")
    changed = sets_of(config)
    assert changed != first
    assert sets_of(recipe(context=64)).train != changed.train
    shutil.rmtree(code)
    assert sets_of(config, began=True).train[0].folder.startswith(str(Path(config.run.folder)))
    with pytest.raises(UsageError, match="no such folder"):
        sets_of(config)


def test_a_run_that_began_refuses_other_sources(recipe: Make, code: Path, talks: Path) -> None:
    sets_of(recipe())
    with pytest.raises(UsageError, match=r"began with other sources.*Give another run\.name"):
        sets_of(recipe(train=[{"code": str(code)}, {"transcripts": str(talks)}]), began=True)
    more = recipe(
        train=[{"code": str(code), "weight": 3.0}], held_out=[{"transcripts": str(talks)}]
    )
    assert sets_of(more, began=True).train[0].weight == 3.0


def test_long_sessions_end_at_the_context(recipe: Make, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    user, says = ({"role": r, "content": "word " * 10} for r in ("user", "assistant"))
    long = {"messages": [user, says, user, says, user, says]}
    hopeless = {"messages": [user, user, user, user, user, user, says]}
    path.write_text(f"{json.dumps(long)}\n{json.dumps(hopeless)}\n")
    found = meta(sets_of(recipe(train=[{"transcripts": str(path)}])).train[0].folder)
    assert found["documents"] == 1
    assert found["tokens"] == 128
    assert found["over_context"] == 2
    path.write_text(json.dumps(hopeless) + "\n")
    with pytest.raises(UsageError, match=r"nothing to learn from: 1 conversations \(1 cut at"):
        sets_of(recipe(train=[{"transcripts": str(path)}]))


def test_a_runs_passed_episodes(recipe: Make, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "rl", "")
    with Ledger(run.ledger, write=True) as ledger:
        ledger.start_eval("before", suite="s", version=0)
        for name, eval_id in (("g1", ""), ("e1", "before")):
            ledger.open_group(name, task_id="t1", size=2, eval_id=eval_id)
            EpisodeStore(run.episodes).write_group(make_group(name))
        ledger.open_group("g2", task_id="t1", size=1)
        failed = make_group("g2", 0)
        failed = type(failed)(
            group_id="g2", task_id="t1", episodes=(make_episode("x", group_id="g2", reward=0.0),)
        )
        EpisodeStore(run.episodes).write_group(failed)
    made = sets_of(recipe(train=[{"ledger": str(run.path)}]))
    assert np.fromfile(Path(made.train[0].folder) / "tokens.bin", "<u2").tolist() == [
        *(1, 2, 3, 5, 6),
        *(1, 2, 3, 5, 6),
    ]
    assert meta(made.train[0].folder)["targets"] == 4
    other = make_tokenizer(tmp_path / "other", 500)
    run.config.write_text(f'[policy]\nmodel = "{other}"\n')
    with pytest.raises(UsageError, match="its tokens are those of"):
        sets_of(recipe(train=[{"ledger": str(run.path)}]))


def test_mistakes_are_named(recipe: Make, tmp_path: Path, talks: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="no file of code"):
        sets_of(recipe(train=[{"code": str(empty)}]))
    (empty / "a.py").write_text("\n")
    with pytest.raises(UsageError, match=r"empty: nothing to learn from: 0 files \(left out: 1 em"):
        sets_of(recipe(train=[{"code": str(empty)}]))
    with pytest.raises(UsageError, match="outside a vocabulary of 300"):
        sets_of(recipe(shape=SHAPE | {"vocabulary": 300}))
    with pytest.raises(ConfigError, match="neither"):
        sets_of(recipe(tokenizer=""))
    with talks.open("a") as f:
        f.write('{"messages": [{"role": "robot"}]}\n')
    with pytest.raises(UsageError, match=r"talks.jsonl:2: messages\[0\].role: 'robot'"):
        sets_of(recipe(train=[{"transcripts": str(talks)}]))
    assert not list((tmp_path / "runs/r/sets").glob("talks*")), "whole or absent"


def test_a_large_vocabulary_is_written_in_four_bytes(recipe: Make, talks: Path) -> None:
    config = recipe(train=[{"transcripts": str(talks)}], shape=SHAPE | {"vocabulary": 100_000})
    assert meta(sets_of(config).train[0].folder)["dtype"] == "uint32"


def test_a_run_leaves_a_run_folder_that_one_process_owns(recipe: Make, tmp_path: Path) -> None:
    config = recipe()
    folder = tmp_path / "runs" / "r"
    result = run_midtrain(config, progress=False)
    assert result.tokens >= 1500
    assert "# torch " in (folder / "config.toml").read_text()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == result.steps
    listed = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")])
    assert "at rest" in listed.output, listed.output
    reported = CliRunner().invoke(app, ["report", str(folder)])
    assert "mid-training has no episodes" in reported.stderr
    holder = "import sys, time\nfrom pathlib import Path\nfrom insitu.ledger.run_folder import *\n"
    holder += f"with RunFolder(Path({str(folder)!r})).lock():\n print('held', flush=True)\n"
    holder += " time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match=f"process {process.pid} owns the run"):
            run_midtrain(config, progress=False)
        process.kill()
    (folder / "ledger.sqlite").touch()
    with pytest.raises(UsageError, match="a run of another kind"):
        run_midtrain(config, progress=False)


def test_it_starts_from_a_models_folder(recipe: Make, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 1, 32)
    config = recipe(tokenizer="", max_tokens=300)
    config = config.model_copy(
        update={"policy": config.policy.model_copy(update={"model": str(model)})}
    )
    result = run_midtrain(config, progress=False)
    assert (Path(result.model) / "tokenizer.json").read_bytes() == (
        model / "tokenizer.json"
    ).read_bytes()


RECIPE = """
[run]
folder = "runs"
[midtrain]
tokenizer = "{tokenizer}"
train = [{{code = "code"}}]
shape = {{hidden = 32, layers = 1, heads = 2, kv_heads = 1, head_dim = 16, ffn = 64, vocabulary = 512}}
context = 128
max_tokens = 9_000
batch_tokens = 256
micro_tokens = 256
threads = 1
eval_every = 0
save_every_s = 0.000001
"""


def test_kill_9_and_the_same_command_give_the_undisturbed_losses(
    tmp_path: Path, tokenizer: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("killed", "calm"):
        Path(f"{name}.toml").write_text(RECIPE.format(tokenizer=tokenizer))
    verb = "from insitu.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", verb, "midtrain", "killed.toml"], stderr=subprocess.DEVNULL
    )
    while not list(Path("runs/killed/checkpoints").glob("step-*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("runs/killed/result.json").exists()
    run_midtrain(load(Path("calm.toml")), progress=False)
    shutil.rmtree(code)  # A run that goes on needs its token sets alone.
    run_midtrain(load(Path("killed.toml")), progress=False)
    assert _losses(tmp_path, "killed") == _losses(tmp_path, "calm")
    assert len(_losses(tmp_path, "calm")) > 2


def _losses(folder: Path, name: str) -> list[tuple[int, float, float]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [(r["step"], r["loss"], r["grad_norm"]) for r in map(json.loads, lines)]
