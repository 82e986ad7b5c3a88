import pyarrow.parquet as pq
import pytest

from insitu.ledger import summary
from insitu.ledger.ledger import Ledger
from insitu.ledger.metrics import write_metrics
from insitu.types import EpisodeEnd, StepReport
from tests.unit.ledger.made import make_episode


@pytest.fixture
def ledger(tmp_path):
    now = [0.0]
    with Ledger(tmp_path / "ledger.sqlite", write=True, clock=lambda: now[0]) as ledger:
        ledger.at = lambda t: now.__setitem__(0, t)
        yield ledger


def start(ledger, episode_id, group_id, attempt=0):
    ledger.start_episode(episode_id, group_id=group_id, task_id="t1", attempt=attempt, seed=1)


def fill(ledger):
    """Rollout 10-20 and 25-40, training 18-30; the training's time is 10-40."""
    ledger.at(10.0)
    ledger.open_group("g1", task_id="t1", size=2)
    start(ledger, "a", "g1")
    start(ledger, "b", "g1", 1)
    ledger.at(18.0)
    ledger.end_episode(make_episode("a", reward=1.0, version=0))
    ledger.at(20.0)
    ledger.end_episode(
        make_episode("b", attempt=1, reward=0.0, version=0, end=EpisodeEnd.TURN_LIMIT)
    )
    ledger.ready_group("g1")
    ledger.plan_step(1, ["g1"])
    ledger.at(25.0)
    ledger.open_group("g2", task_id="t1", size=1)
    start(ledger, "c", "g2")
    ledger.at(30.0)
    ledger.finish_step(
        StepReport(step=1, version=1, loss=0.5, metrics={"tokens": 9.0}, wall_s=12.0),
        started_at=18.0,
    )
    ledger.at(40.0)
    ledger.end_episode(
        make_episode("c", group_id="g2", end=EpisodeEnd.FAULT, note="SandboxError: gone")
    )


def test_overlap_is_exact(ledger):
    fill(ledger)
    assert summary.busy(ledger, "rollout") == [(10.0, 20.0), (25.0, 40.0)]
    assert summary.busy(ledger, "train") == [(18.0, 30.0)]
    assert summary.training_time(ledger) == [(10.0, 40.0)]
    assert summary.overlap_fraction(ledger) == pytest.approx(7.0 / 30.0)
    assert summary.utilisation(ledger, "train") == pytest.approx(12.0 / 30.0)
    ledger.add_span("engine", started_at=10.0, ended_at=25.0, tokens=100)
    assert summary.utilisation(ledger, "engine") == pytest.approx(0.5)


def test_an_empty_ledger_has_no_overlap(ledger):
    assert summary.overlap_fraction(ledger) == 0.0
    assert summary.step_table(ledger) == []


def test_counts(ledger):
    fill(ledger)
    assert summary.ends_by_kind(ledger) == {"finished": 1, "turn_limit": 1, "fault": 1}
    assert summary.faults_by_cause(ledger) == {("sandbox", "gone"): 1}
    assert summary.lost_episodes(ledger) == 0
    start(ledger, "d", "g2")
    assert summary.lost_episodes(ledger) == 1
    ledger.discard_group("g2", "stale")
    assert summary.discards_by_reason(ledger) == {"stale": 1}


def test_the_table_of_steps_and_its_file(ledger, tmp_path):
    fill(ledger)
    (row,) = summary.step_table(ledger)
    assert (row.reward, row.signals, row.episodes, row.groups) == (0.5, {"passed": 0.5}, 2, 1)
    assert (row.sampled_tokens, row.lag_max, row.calls) == (4, 0, 1.0)
    assert write_metrics(ledger, tmp_path / "metrics.parquet") == 1
    (read,) = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert (read["step"], read["reward"], read["signal_passed"]) == (1, 0.5, 0.5)
    assert read["train_tokens"] == 9.0


def test_the_file_of_a_run_without_steps_has_its_columns(ledger, tmp_path):
    assert write_metrics(ledger, tmp_path / "metrics.parquet") == 0
    assert "reward" in pq.read_table(tmp_path / "metrics.parquet").column_names
