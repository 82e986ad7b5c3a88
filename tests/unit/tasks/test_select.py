import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.tasks.select import choose, shares, unevenness
from insitu.tasks.trials import Trial, count_kinds, opposite, spread
from insitu.types import Edit


def bug(number, old, new, family="comparison", function="f", **changes):
    values = {
        "base": "pkg-1",
        "path": "pkg.py",
        "qualname": function,
        "first_line": 1,
        "last_line": 99,
        "edit": Edit(path="pkg.py", line=number, old=old, new=new, column=0),
        "family": family,
        "status": "killed",
        "candidates": 20,
        "base_s": 0.1,
    }
    return Trial(**(values | changes))


KINDS = {
    ("comparison", "<", "<="): 2,
    ("comparison", "<=", "<"): 2,
    ("constant", "0", "1"): 4,
    ("wrong_variable", "<name>", "<other>"): 12,
}


def pool_of(kinds, **changes):
    """`{(family, old, new): 9}`: so many bugs of each kind, each in a function of its own."""
    numbers = iter(range(1, 10_000))
    pool = []
    for (family, old, new), count in kinds.items():
        words = ("a", "b") if old == "<name>" else (old, new)
        pool += [
            bug(n, *words, family, function=f"f{n}", **changes)
            for n in (next(numbers) for _ in range(count))
        ]
    return pool


def same(_trial):
    return KINDS


def plenty(**changes):
    return pool_of({opposite(kind): 60 for kind in KINDS}, **changes)


def repairs(chosen):
    return Counter(t.repair for t in chosen)


def test_each_kind_is_the_repair_as_often_as_among_the_legal_edits():
    chosen = choose(plenty(), same, count=80, per_function=1, seed=0)
    counts = repairs(chosen)
    for kind, n in KINDS.items():
        # A bug's own repair is one legal edit more, hence a little more than 4 n.
        assert counts[kind] == pytest.approx(80 * n / 20, abs=3)
    assert unevenness(chosen, same) < 0.05


@settings(max_examples=30, deadline=None)
@given(
    weights=st.lists(st.integers(1, 30), min_size=2, max_size=8),
    seed=st.integers(0, 99),
    count=st.integers(10, 60),
)
def test_a_table_of_rates_learns_nothing_where_the_pool_gives_enough(weights, seed, count):
    kinds = {("constant", str(i), str(i + 1)): n for i, n in enumerate(weights)}
    pool = pool_of({opposite(kind): count for kind in kinds})
    chosen = choose(pool, lambda _: kinds, count=count, per_function=1, seed=seed)
    assert len(chosen) == count
    due = Counter()
    for trial in chosen:
        due.update(shares(trial, kinds))
    taken = repairs(chosen)
    assert all(abs(due[kind] - taken[kind]) < 0.1 * due[kind] + 2.5 for kind in kinds)


@pytest.mark.parametrize("count", [5, 20, 40])
def test_every_prefix_is_as_even(count):
    whole = choose(plenty(), same, count=80, per_function=1, seed=0)
    assert choose(plenty(), same, count=count, per_function=1, seed=0) == whole[:count]
    assert unevenness(whole[:count], same) < 0.05 + 1 / count


def test_what_the_pool_lacks_does_not_stop_the_choice():
    pool = pool_of({("constant", "1", "0"): 9})
    assert len(choose(pool, same, count=20, per_function=1, seed=0)) == 9


def test_a_bug_changes_what_is_legal_by_itself():
    trial = bug(1, "<", "<=")
    now = shares(trial, {("comparison", "<", "<="): 1, ("constant", "0", "1"): 3})
    assert now == {("comparison", "<=", "<"): 0.25, ("constant", "0", "1"): 0.75}


def test_few_bugs_of_one_function_and_only_killed_ones():
    pool = [bug(n, *("<", "<=")[:: 1 if n % 2 else -1]) for n in range(40)]
    pool += [bug(n + 50, "<", "<=", function="g", status="survived") for n in range(9)]
    chosen = choose(pool, same, count=40, per_function=4, seed=0)
    assert len(chosen) == 4
    assert {t.qualname for t in chosen} == {"f"}


def test_the_pools_order_does_not_matter_and_sound_ones_come_first():
    pool = plenty()
    chosen = choose(pool, same, count=20, per_function=1, seed=0)
    assert choose(pool[::-1], same, count=20, per_function=1, seed=0) == chosen
    assert choose(pool, same, count=20, per_function=1, seed=1) != chosen
    sound = {t.key for t in pool} - {t.key for t in chosen}
    again = choose(pool, same, count=20, per_function=1, seed=0, sound=sound)
    assert {t.key for t in again} <= sound


def test_what_was_chosen_alone_gives_the_same_choice():
    pool = [*plenty(), *(bug(n + 900, "a", "b", "return", f"g{n % 7}") for n in range(30))]
    chosen = choose(pool, same, count=50, per_function=2, seed=3)
    keys = {t.key for t in chosen}
    rest = [t for t in pool if t.key in keys]
    assert choose(rest, same, count=50, per_function=2, seed=3, sound=keys) == chosen


def test_helpful_ones_come_first_within_a_kind_and_kinds_that_have_some_before_others():
    mute = ("constant", "1", "0")
    pool = [
        bug(t.edit.line, t.edit.old, t.edit.new, t.family, t.qualname, helpful=t.edit.line % 2 == 0)
        for t in plenty()
        if t.kind != mute
    ]
    chosen = choose([*pool, *pool_of({mute: 60})], same, count=40, per_function=1, seed=0)
    assert all(t.helpful for t in chosen if t.kind != mute)
    assert sum(t.helpful for t in chosen) >= 0.65 * 40
    assert repairs(chosen)[opposite(mute)] >= 4


def test_names_have_no_direction():
    kind = bug(1, "a", "b", "wrong_variable").kind
    assert opposite(kind) == kind
    assert opposite(("comparison", "<", "<=")) == ("comparison", "<=", "<")


def test_kinds_are_counted_by_what_changes():
    edits = [
        (Edit(path="p", line=n, old=f"x{n} < 1", new=f"x{n} <= 1"), "comparison") for n in (1, 2)
    ]
    assert count_kinds(edits) == {("comparison", "<", "<="): 2}


def test_tries_take_the_families_in_turn():
    edits = [(Edit(path="p", line=n, old="x", new="y"), "wrong_variable") for n in range(50)]
    edits += [(Edit(path="p", line=60, old="<", new=">"), "comparison")]
    chosen = spread(edits, 4, random.Random(0))
    assert len(chosen) == 4
    assert "comparison" in [family for _, family in chosen]
