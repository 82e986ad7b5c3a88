import os
import sqlite3

import pytest

from insitu.ledger.ledger import Ledger
from insitu.types import CorruptError, EpisodeEnd, Fault, PolicyVersion, StepReport, UsageError
from tests.unit.ledger.made import make_episode


class Clock:
    """Each look at it is one second later."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path, write=True, clock=Clock()) as ledger:
        yield ledger


def run_group(ledger: Ledger, group_id: str = "g1", size: int = 1) -> None:
    ledger.open_group(group_id, task_id="t1", size=size)
    for i in range(size):
        run_episode(ledger, f"{group_id}-{i}", group_id=group_id, attempt=i)
    ledger.ready_group(group_id)


def run_episode(ledger: Ledger, episode_id: str, **values) -> None:
    start(ledger, episode_id, **{k: values[k] for k in ("group_id", "attempt") if k in values})
    ledger.end_episode(make_episode(episode_id, **values))


def start(ledger: Ledger, episode_id: str, group_id: str = "g1", attempt: int = 0) -> None:
    ledger.start_episode(episode_id, group_id=group_id, task_id="t1", attempt=attempt, seed=7)


def test_an_episode_starts_once_and_ends_once(ledger):
    ledger.open_group("g1", task_id="t1", size=1)
    start(ledger, "e1")
    (row,) = ledger.episodes(running=True)
    assert (row.outcome, row.ended_at, row.version_min) == (None, None, -1)
    with pytest.raises(ValueError, match="contradicts"):
        start(ledger, "e1")
    ledger.end_episode(make_episode())
    (row,) = ledger.episodes()
    assert row.outcome == "finished"
    assert (row.calls, row.prompt_tokens, row.sampled_tokens) == (1, 3, 2)
    assert (row.version_min, row.version_max) == (3, 4)
    assert (row.signals, row.reward, row.formula) == ({"passed": 1.0}, 1.0, "passed")
    assert row.timings == {"engine": 0.5, "verify": 0.1}
    with pytest.raises(ValueError, match="not running"):
        ledger.end_episode(make_episode())
    with pytest.raises(ValueError, match="not running"):
        ledger.end_episode(make_episode("never started"))


def test_an_attempt_may_fault_and_counts_once(ledger):
    ledger.open_group("g1", task_id="t1", size=1)
    for name in ("e1", "e1-r1"):
        start(ledger, name)
        ledger.end_episode(
            make_episode(name, end=EpisodeEnd.FAULT, note="EngineError: connection refused\nmore")
        )
    run_episode(ledger, "e1-r2")
    start(ledger, "e1-r3")
    with pytest.raises(ValueError, match="contradicts"):
        ledger.end_episode(make_episode("e1-r3"))
    assert [(f.boundary, f.cause, f.episode_id) for f in ledger.faults()] == [
        ("engine", "connection refused", "e1"),
        ("engine", "connection refused", "e1-r1"),
    ]


def test_a_fault_belongs_to_a_faulted_episode_only(ledger):
    ledger.open_group("g1", task_id="t1", size=1)
    start(ledger, "e1")
    fault = Fault(boundary="sandbox", cause="no space", at=1.0)
    with pytest.raises(ValueError, match="by a fault"):
        ledger.end_episode(make_episode(), fault=fault)
    ledger.end_episode(make_episode(end=EpisodeEnd.FAULT), fault=fault)
    assert [(f.boundary, f.episode_id) for f in ledger.faults()] == [("sandbox", "e1")]


def test_a_group_is_in_one_batch_at_most(ledger):
    for name in ("g1", "g2", "g3"):
        run_group(ledger, name)
    ledger.plan_step(1, ["g2", "g1"])
    for groups in (["g1"], ["g3", "g2"], ["g3", "g3"], ["unknown"], []):
        with pytest.raises(ValueError, match=r"group|batch"):
            ledger.plan_step(2, groups)
    assert [s.group_ids for s in ledger.steps()] == [("g2", "g1")]
    assert [g.group_id for g in ledger.groups("ready")] == ["g3"]
    with pytest.raises(ValueError, match="cannot become discarded"):
        ledger.discard_group("g1", "stale")


def test_steps_follow_each_other(ledger):
    run_group(ledger, "g1")
    with pytest.raises(ValueError, match="the next one is 1"):
        ledger.plan_step(2, ["g1"])
    ledger.plan_step(1, ["g1"])
    with pytest.raises(ValueError, match="the next one to finish is 1"):
        ledger.finish_step(StepReport(step=2, version=2, loss=0.0), started_at=1.0)
    report = StepReport(step=1, version=1, loss=0.5, metrics={"tokens": 5.0}, wall_s=2.0)
    ledger.finish_step(report, started_at=110.0)
    (step,) = ledger.steps("done")
    assert (step.version, step.loss, step.metrics, step.wall_s) == (1, 0.5, {"tokens": 5.0}, 2.0)
    assert ledger.group("g1").state == "trained"
    assert ledger.group("g1").step == 1


def test_rewinding_plans_later_steps_again_with_their_batches(ledger):
    for i in (1, 2, 3):
        run_group(ledger, f"g{i}")
        ledger.plan_step(i, [f"g{i}"])
        if i < 3:
            ledger.finish_step(StepReport(step=i, version=i, loss=0.0), started_at=1.0)
    assert ledger.rewind(1) == 1
    assert [(s.number, s.group_ids, s.replays) for s in ledger.steps("planned")] == [
        (2, ("g2",), 1),
        (3, ("g3",), 0),
    ]
    assert [ledger.group(f"g{i}").state for i in (1, 2, 3)] == ["trained", "batched", "batched"]
    ledger.finish_step(StepReport(step=2, version=2, loss=0.0), started_at=1.0)


def test_an_evaluations_groups_are_never_trained(ledger):
    ledger.start_eval("ev", suite="heldout", version=0, label="before")
    ledger.start_eval("ev", suite="heldout", version=0)
    with pytest.raises(ValueError, match="began with"):
        ledger.start_eval("ev", suite="heldout", version=1)
    ledger.open_group("g1", task_id="t1", size=1, eval_id="ev")
    run_episode(ledger, "e1")
    ledger.ready_group("g1")
    assert ledger.groups("ready") == []
    with pytest.raises(ValueError, match="evaluation"):
        ledger.plan_step(1, ["g1"])
    assert [e.episode_id for e in ledger.episodes(eval_id="ev")] == ["e1"]
    assert ledger.episodes(eval_id="") == []
    ledger.finish_eval("ev", '{"pass": 1}')
    with pytest.raises(ValueError, match="not running"):
        ledger.finish_eval("ev", "{}")
    assert ledger.evals()[0].result == '{"pass": 1}'


def test_versions_and_meta(ledger):
    version = PolicyVersion(number=1, digest="ab", path="weights/v1", step=1)
    ledger.add_version(version)
    ledger.add_version(version)
    assert ledger.versions() == [version]
    ledger.set_meta("insitu", "0.1.0")
    ledger.set_meta("insitu", "0.1.1")
    assert ledger.meta("insitu") == "0.1.1"
    assert ledger.meta("absent", "x") == "x"


def test_a_reader_sees_what_is_committed_and_cannot_write(path, ledger):
    ledger.open_group("g1", task_id="t1", size=1)
    with Ledger(path) as reader:
        assert [g.group_id for g in reader.groups()] == ["g1"]
        start(ledger, "e1")
        assert len(reader.episodes()) == 1
        with pytest.raises(ValueError, match="reading only"):
            reader.open_group("g2", task_id="t1", size=1)


def test_a_closed_ledger_is_one_file(path):
    with Ledger(path, write=True) as ledger:
        ledger.set_meta("a", "b")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_run_can_be_read_from_a_folder_that_cannot_be_written(path):
    with Ledger(path, write=True) as ledger:
        ledger.set_meta("a", "b")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Ledger(path) as reader:
            assert reader.meta("a") == "b"
    finally:
        path.parent.chmod(0o755)


def test_a_full_disk_is_one_clear_error_and_nothing_half_written(path, ledger):
    ledger.open_group("g1", task_id="t1", size=1)
    pages = ledger.query("PRAGMA page_count")[0][0]
    ledger.query(f"PRAGMA max_page_count = {pages}")
    start(ledger, "e1")
    with pytest.raises(UsageError, match=r"disk is full\. Free some space"):
        ledger.end_episode(make_episode(note="x" * 100_000))
    assert ledger.episodes()[0].outcome is None
    ledger.query("PRAGMA max_page_count = 1000000")
    ledger.end_episode(make_episode(note="x" * 100_000))


def test_a_missing_ledger(path):
    with pytest.raises(UsageError, match="no such ledger"):
        Ledger(path)


@pytest.mark.parametrize("write", [False, True])
def test_another_file_or_a_newer_format_is_refused(path, write):
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptError, match="damaged"):
        Ledger(path, write=write)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    with pytest.raises(CorruptError, match="not a ledger"):
        Ledger(path, write=write)
    path.unlink()
    Ledger(path, write=True).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(CorruptError, match=r"ledger format 99.*Use the insitu"):
        Ledger(path, write=write)


def test_a_damaged_page_is_found_on_opening_for_writing(path):
    with Ledger(path, write=True) as ledger:
        for i in range(200):
            ledger.set_meta(f"key {i}", "x" * 200)
    raw = bytearray(path.read_bytes())
    size = 4096
    for page in range(1, len(raw) // size):
        raw[page * size : page * size + 64] = os.urandom(64)
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match="damaged"):
        Ledger(path, write=True)


def test_sessions_of_killed_controllers_end_at_their_last_event(path):
    clock = Clock()
    killed = Ledger(path, write=True, clock=clock)
    killed.open_group("g1", task_id="t1", size=1)
    last = clock.now
    killed._connection.close()
    clock.now += 1000.0
    with Ledger(path, write=True, clock=clock) as ledger:
        assert ledger.sessions() == [(101.0, last), (last + 1001.0, None)]
