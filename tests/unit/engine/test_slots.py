import numpy as np
import pytest

from insitu.engine.embedded.slots import Place, SlotTable


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def run(table: SlotTable, prompt: np.ndarray, session: str, version: int = 0) -> Place:
    """Place a request, compute its prompt, and end it."""
    place = table.place(prompt, session, version)
    assert place is not None
    table.take(place, prompt, session)
    table.computed(place.slot, place.reused, len(prompt), version)
    table.free(place.slot)
    return place


LONG = np.arange(100, dtype=np.int32)


def test_a_session_goes_on_in_its_slot() -> None:
    table = SlotTable(3, 200)
    first = run(table, LONG[:50], "a")
    run(table, LONG[50:], "b")
    assert run(table, LONG[:80], "a") == Place(first.slot, 50)


def test_the_last_token_is_always_computed() -> None:
    table = SlotTable(2, 200)
    run(table, LONG, "a")
    assert run(table, LONG, "a").reused == 99
    assert run(table, LONG[:1], "a").reused == 0


def test_another_session_copies_the_prefix_and_shares_its_lineage() -> None:
    table = SlotTable(3, 200)
    a = run(table, LONG, "a")
    b = run(table, np.concatenate([LONG[:60], ids(7, 7)]), "b")
    assert b == Place(b.slot, 60, a.slot)
    assert b.slot != a.slot
    assert table.lineage[a.slot] == table.lineage[b.slot] >= 0
    assert table.shared[a.slot] == table.shared[b.slot] == 60
    # A rewrite below the shared length shortens it; a fresh start ends it.
    run(table, np.concatenate([LONG[:40], ids(9, 9)]), "b")
    assert table.shared[b.slot] == 40
    assert table.shared[a.slot] == 60


def test_the_oldest_idle_slot_is_evicted_and_busy_ones_never() -> None:
    table = SlotTable(2, 200)
    place = table.place(ids(1, 2), "a", 0)
    assert place is not None
    table.take(place, ids(1, 2), "a")
    for session in "bcd":
        assert run(table, LONG, session).slot != place.slot
    other = table.place(ids(5), "e", 0)
    assert other is not None
    table.take(other, ids(5), "e")
    assert table.place(ids(6), "f", 0) is None


@pytest.mark.parametrize(("reuse", "own"), [("keep", 50), ("recompute", 0)])
def test_older_versions_are_reused_by_their_own_session_only(reuse: str, own: int) -> None:
    table = SlotTable(4, 200, reuse=reuse)  # type: ignore[arg-type]
    run(table, LONG[:50], "a", version=0)
    assert run(table, LONG[:90], "b", version=1).reused == 0
    assert run(table, LONG[:90], "a", version=1).reused in (own, 89)
    table = SlotTable(4, 200, reuse=reuse)  # type: ignore[arg-type]
    run(table, LONG[:50], "a", version=0)
    assert run(table, LONG[:90], "a", version=1).reused == own


def test_a_request_waits_for_a_prefix_in_the_making() -> None:
    table = SlotTable(3, 200)
    place = table.place(LONG, "a", 0)
    assert place is not None
    table.take(place, LONG, "a")
    longer = np.concatenate([LONG, ids(5)])
    assert table.place(longer, "b", 0) is None
    assert table.place(np.concatenate([ids(9), LONG]), "c", 0) is not None
    table.computed(place.slot, 0, 100, 0)
    assert table.place(longer, "b", 0) == Place(1, 100, place.slot)


def test_deterministic_reuse_is_whole_grains_of_the_current_version() -> None:
    table = SlotTable(3, 200, grain=32)
    run(table, LONG, "a", version=0)
    assert run(table, LONG, "a", version=0).reused == 96
    assert run(table, LONG[:70], "b", version=0).reused == 64
    assert run(table, LONG, "a", version=1).reused == 0


def test_what_was_forgotten_is_not_reused() -> None:
    table = SlotTable(2, 200)
    place = run(table, LONG, "a")
    table.forget(place.slot)
    assert run(table, LONG, "a").reused == 0
