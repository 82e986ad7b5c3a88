import subprocess
import sys
from pathlib import Path

import pytest

from insitu.kit.digest import digest_bytes
from insitu.ledger import summary
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.recovery import CAUSE, recover
from insitu.ledger.run_folder import RunFolder
from insitu.types import CorruptError, EpisodeEnd
from tests.unit.ledger.made import make_episode, make_group

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", "")


@pytest.fixture
def ledger(run):
    with Ledger(run.ledger, write=True) as ledger:
        yield ledger


@pytest.fixture
def store(run):
    return EpisodeStore(run.episodes)


def start(ledger, episode_id, attempt=0, group_id="g1"):
    ledger.start_episode(episode_id, group_id=group_id, task_id="t1", attempt=attempt, seed=7)


def fill(ledger, store, group_id="g1"):
    group = make_group(group_id)
    ledger.open_group(group_id, task_id="t1", size=2)
    for episode in group.episodes:
        start(ledger, episode.episode_id, episode.attempt, group_id)
        ledger.end_episode(episode)
    store.write_group(group)
    ledger.ready_group(group_id)


def test_running_episodes_end_as_faults_and_their_group_goes_on(ledger, store):
    ledger.open_group("g1", task_id="t1", size=2)
    start(ledger, "e0")
    store.write_episode(make_episode("e0"))
    ledger.end_episode(make_episode("e0"))
    start(ledger, "e1", 1)
    found = recover(ledger, store)
    assert found.interrupted == ("e1",)
    (group,) = found.open
    assert group.done == (make_episode("e0"),)
    assert group.started == {0: 1, 1: 1}
    assert summary.faults_by_cause(ledger) == {("controller", CAUSE): 1}
    assert ledger.episodes(group_id="g1")[1].outcome == EpisodeEnd.FAULT
    assert summary.lost_episodes(ledger) == 0
    again = recover(ledger, store)
    assert (again.interrupted, again.open) == ((), found.open)


def test_an_episode_whose_file_was_written_ends_as_it_did(ledger, store):
    ledger.open_group("g1", task_id="t1", size=2)
    start(ledger, "e0")
    store.write_episode(make_episode("e0"))
    found = recover(ledger, store)
    assert found.interrupted == ()
    assert ledger.episodes()[0].outcome == EpisodeEnd.FINISHED


def test_a_group_whose_file_was_written_is_ready(ledger, store):
    group = make_group()
    ledger.open_group("g1", task_id="t1", size=2)
    for episode in group.episodes:
        start(ledger, episode.episode_id, episode.attempt)
    store.write_group(group)
    found = recover(ledger, store)
    assert [g.group_id for g in found.ready] == ["g1"]
    assert (found.open, found.interrupted) == ((), ())


def test_files_of_episodes_that_the_ledger_forgot_do_not_count(ledger, store):
    """After a power cut: the files are there, the ledger's last commits are not."""
    ledger.open_group("g1", task_id="t1", size=2)
    start(ledger, "g1-0")
    group = make_group()
    store.write_group(group)
    store.write_episode(group.episodes[1])
    found = recover(ledger, store)
    assert found.ready == ()
    assert [g.done for g in found.open] == [()]
    assert found.interrupted == ("g1-0",)


def test_groups_of_evaluations_go_on_too(ledger, store):
    ledger.start_eval("ev", suite="heldout", version=0)
    ledger.open_group("g1", task_id="t1", size=2, eval_id="ev")
    start(ledger, "e0")
    found = recover(ledger, store)
    assert found.interrupted == ("e0",)
    assert [g.row.eval_id for g in found.open] == ["ev"]


def test_groups_whose_tokens_are_gone_are_given_up(ledger, store):
    fill(ledger, store, "g1")
    store.path("g1").unlink()
    ledger.open_group("g2", task_id="t1", size=2)
    start(ledger, "e0", group_id="g2")
    ledger.end_episode(make_episode("e0", group_id="g2"))
    found = recover(ledger, store)
    assert [g.group_id for g in found.discarded] == ["g1", "g2"]
    assert (found.ready, found.open) == ((), ())


def test_a_planned_step_keeps_its_batch_and_needs_its_files(ledger, store):
    fill(ledger, store, "g1")
    fill(ledger, store, "g2")
    ledger.plan_step(1, ["g2", "g1"])
    (step,) = recover(ledger, store).planned
    assert step.group_ids == ("g2", "g1")
    store.path("g2").unlink()
    with pytest.raises(CorruptError, match="its step is planned"):
        recover(ledger, store)


def test_half_written_files_are_swept(ledger, store, run):
    (run.episodes / ".g1.parquet.abcd.part").write_bytes(b"PAR1")
    recover(ledger, store)
    assert list(run.episodes.iterdir()) == []


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_a_run_killed_at_any_line_loses_nothing_and_trains_nothing_twice(tmp_path, seed):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tests.unit.ledger.killed_run", folder, str(seed), "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed") > 10
    store = EpisodeStore(folder / "episodes")
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert summary.lost_episodes(ledger) == 0
        steps = ledger.steps()
        assert [s.state for s in steps] == ["done"] * 6
        trained = [g for s in steps for g in s.group_ids]
        assert len(set(trained)) == len(trained)
        assert {g.state for g in ledger.groups()} <= {"trained", "ready"}
        state = ""
        for step in steps:
            episodes = [e for g in step.group_ids for e in store.read_group(g).episodes]
            state = digest_bytes(state.encode(), *(e.episode_id.encode() for e in episodes))
            assert step.loss == int(state[:8], 16) / 2**32
        assert [v.number for v in ledger.versions()] == [1, 2, 3, 4, 5, 6]
    assert not list(folder.rglob("*.part"))
