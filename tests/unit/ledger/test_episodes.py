import pytest
from hypothesis import HealthCheck, given, settings

from insitu.ledger.episodes import EpisodeStore
from insitu.types import CorruptError, Group
from tests.unit.ledger.made import groups, make_episode, make_group


@given(group=groups)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_group_is_read_back_exactly(tmp_path, group: Group):
    store = EpisodeStore(tmp_path)
    store.write_group(group)
    assert store.read_group("g1") == group
    assert list(tmp_path.glob(".*")) == []


def test_single_episodes_are_kept_until_their_group_is_written(tmp_path):
    store = EpisodeStore(tmp_path)
    group = make_group(size=3)
    for episode in reversed(group.episodes[:2]):
        store.write_episode(episode)
    assert store.read_open("g1") == group.episodes[:2]
    assert not store.has_group("g1")
    store.write_group(group)
    assert store.read_open("g1") == ()
    assert store.has_group("g1")


def test_a_damaged_or_missing_file_is_one_clear_error(tmp_path):
    store = EpisodeStore(tmp_path)
    with pytest.raises(CorruptError, match="no such file"):
        store.read_group("g1")
    store.write_group(make_group())
    raw = store.path("g1").read_bytes()
    store.path("g1").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CorruptError, match="damaged"):
        store.read_group("g1")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file's name"):
        EpisodeStore(tmp_path).path(name)


def test_repeated_prompts_cost_little(tmp_path):
    """Each call repeats the one before it; the file must not grow with the square."""
    from dataclasses import replace

    import numpy as np

    rng = np.random.default_rng(0)
    ids = tuple(int(i) for i in rng.integers(0, 4096, 2000))
    episode = make_episode()
    calls = tuple(replace(episode.calls[0], prompt_ids=ids[: 400 + 100 * i]) for i in range(16))
    store = EpisodeStore(tmp_path)
    store.write_group(Group(group_id="g1", task_id="t1", episodes=(replace(episode, calls=calls),)))
    assert store.path("g1").stat().st_size < 2000 * 4 * 3
