"""The real loop: real product, sandboxes, engine and trainer processes; a tiny policy."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from insitu.cli.main import app
from insitu.config.load import load
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.rows import StepRow
from insitu.ledger.run_folder import RunFolder
from insitu.ledger.summary import lost_episodes
from insitu.rollout.samples import batch_samples
from insitu.train.server import open_trainer
from insitu.weights.store import WeightStore


def start(recipe: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "insitu", "rl", str(recipe), *arguments]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said.decode()


def steps_of(folder: RunFolder) -> list[StepRow]:
    with Ledger(folder.ledger) as ledger:
        return ledger.steps("done")


def check_whole(folder: RunFolder, steps: int) -> None:
    """Nothing lost, nothing twice, and the losses of an undisturbed run given the same batches."""
    with Ledger(folder.ledger) as ledger:
        assert lost_episodes(ledger) == 0
        done = ledger.steps()
        assert [s.number for s in done] == list(range(1, steps + 1))
        assert {s.state for s in done} == {"done"}
        trained = [g for s in done for g in s.group_ids]
        assert len(trained) == len(set(trained))
        assert {g.group_id for g in ledger.groups("trained")} == set(trained)
    store = EpisodeStore(folder.episodes)
    again = _undisturbed(folder)
    for step in done:
        groups = [store.read_group(g) for g in step.group_ids]
        report = again.step(batch_samples(groups, version=step.number - 1), number=step.number)
        assert report.loss == step.loss
        assert report.metrics["grad_norm"] == step.metrics["grad_norm"]
    weights = WeightStore(folder.weights)
    numbers = weights.numbers()
    assert (numbers[0], numbers[-1]) == (0, steps)
    for number in numbers:
        weights.verify(number)
    assert Path(weights.get(steps).path, "model.safetensors").read_bytes()[-64:] == _tail(again)


def _undisturbed(folder: RunFolder):
    """A trainer at version 0 of this run, in this process."""
    elsewhere = RunFolder(folder.path.with_name("again"))
    (elsewhere.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    elsewhere.config.write_text(folder.config.read_text())
    WeightStore(elsewhere.weights).adopt(Path(WeightStore(folder.weights).get(0).path))
    return open_trainer(elsewhere)[0]


def _tail(trainer) -> bytes:
    return b"".join(bytes(t.data) for t in trainer.tensors().values())[-64:]


def wait_for(folder: RunFolder, sql: str, process: subprocess.Popen[bytes]) -> None:
    """Until the run's ledger answers `sql` with something true."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read().decode()
        if folder.ledger.exists():
            try:
                with sqlite3.connect(f"file:{folder.ledger}?mode=ro", uri=True) as db:
                    if db.execute(sql).fetchone()[0]:
                        return
            except sqlite3.OperationalError:
                pass  # not made yet
        time.sleep(0.02)
    pytest.fail(f"never: {sql}")


def kill_service(folder: RunFolder, module: str) -> None:
    """kill -9 the run's process of that module, found by the run on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in words and any(str(folder.path).encode() in w for w in words):
            os.kill(int(path.parent.name), signal.SIGKILL)
            return
    pytest.fail(f"no process of {module}")


def test_the_loop_runs_and_the_run_folder_tells_what_happened(recipe):
    finish(start(recipe))
    folder = RunFolder(recipe.parent / "r")
    check_whole(folder, steps=3)
    for step in steps_of(folder):
        # bf16 arithmetic on both sides; the meter would be far above this with other weights.
        assert step.metrics["k3"] < 1e-2
        assert 0 <= step.metrics["lag_max"] <= 1
    assert (folder.report / "index.html").is_file()
    assert (folder.report / "summary.json").is_file()
    assert load(folder.config).rl.steps == 3
    check_export(folder)


def check_export(folder: RunFolder) -> None:
    """The tokens of an ATIF document are those that were trained."""
    name = f"{steps_of(folder)[0].group_ids[0]}-0"
    out = folder.path / "episode.json"
    command = ["episodes", "atif", str(folder.path), name]
    assert CliRunner().invoke(app, [*command, "--out", str(out)]).exit_code == 0
    document = json.loads(out.read_text())
    assert json.loads(CliRunner().invoke(app, command).stdout) == document
    assert (document["session_id"], document["agent"]["name"]) == (name, "mender")
    episode = EpisodeStore(folder.episodes).read_group(name[:-2]).episodes[0]
    assert document["extra"]["reward"] == episode.reward.value
    said = [s["metrics"]["completion_token_ids"] for s in document["steps"] if "metrics" in s]
    assert said[0] == list(episode.calls[0].result.token_ids)
    absent = CliRunner().invoke(app, [*command[:-1], "g000000-9"])
    assert absent.exit_code == 2
    assert "no episode g000000-9. Name one, e.g. g000000-" in absent.stderr


def test_a_killed_engine_and_a_killed_trainer_do_not_stop_the_run(recipe):
    folder = RunFolder(recipe.parent / "r")
    process = start(recipe, "--set", "rl.steps=10")
    wait_for(folder, "SELECT count(*) FROM steps WHERE state = 'done'", process)
    kill_service(folder, "insitu.engine.server")
    wait_for(folder, "SELECT count(*) >= 2 FROM steps WHERE state = 'done'", process)
    kill_service(folder, "insitu.train.server")
    finish(process)
    check_whole(folder, steps=10)
    with Ledger(folder.ledger) as ledger:
        assert {f.boundary for f in ledger.faults()} >= {"engine", "train"}


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("SELECT count(*) FROM episodes WHERE outcome IS NULL", marks=pytest.mark.slow),
        "SELECT count(*) FROM steps WHERE state = 'planned'",
        pytest.param("SELECT count(*) FROM steps WHERE state = 'done'", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_with_resume(recipe, moment):
    folder = RunFolder(recipe.parent / "r")
    process = start(recipe)
    wait_for(folder, moment, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finish(start(recipe, "--resume"))
    check_whole(folder, steps=3)


@pytest.mark.slow
def test_an_on_policy_run_repeats_exactly(recipe):
    options = ["--set", "rl.staleness=0", "--set", "engine.deterministic=true"]
    numbers = []
    for name in ("a", "b"):
        finish(start(recipe, "--set", f"run.name={name}", *options))
        folder = RunFolder(recipe.parent / name)
        steps = steps_of(folder)
        store = EpisodeStore(folder.episodes)
        tokens = [
            s.token_ids
            for step in steps
            for g in step.group_ids
            for e in store.read_group(g).episodes
            for s in e.segments
        ]
        numbers.append(([(s.loss, s.metrics["grad_norm"], s.group_ids) for s in steps], tokens))
    assert numbers[0] == numbers[1]
