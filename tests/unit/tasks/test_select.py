from collections import Counter

import pytest

from insitu.tasks.select import choose, imbalance, opposite
from insitu.tasks.trials import Trial, spread
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


def pool_of(kinds):
    """`{("<", "<="): 9}`: so many bugs of each kind, each in a function of its own."""
    numbers = iter(range(1, 10_000))
    return [
        bug(n, old, new, function=f"f{n}")
        for (old, new), count in kinds.items()
        for n in (next(numbers) for _ in range(count))
    ]


def test_each_kind_is_as_frequent_as_its_opposite():
    pool = pool_of({("<", "<="): 40, ("<=", "<"): 7, ("==", "!="): 30, ("!=", "=="): 12})
    chosen = choose(pool, count=100, per_function=1, seed=0)
    assert Counter(t.kind[1:] for t in chosen) == {
        ("<", "<="): 7,
        ("<=", "<"): 7,
        ("==", "!="): 12,
        ("!=", "=="): 12,
    }
    assert imbalance(chosen) == 0


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_every_prefix_is_balanced(count):
    pool = pool_of({("<", "<="): 40, ("<=", "<"): 37, ("==", "!="): 30, ("!=", "=="): 12})
    chosen = choose(pool, count=count, per_function=1, seed=0)
    assert len(chosen) == count
    assert imbalance(chosen) * count <= 1


def test_a_kind_without_its_opposite_is_not_used():
    assert choose(pool_of({("<", "<="): 9}), count=9, per_function=9, seed=0) == []


def test_few_bugs_of_one_function_and_only_killed_ones():
    pool = [bug(n, *("<", "<=")[:: 1 if n % 2 else -1]) for n in range(40)]
    pool += [bug(n + 50, "<", "<=", function="g", status="survived") for n in range(9)]
    chosen = choose(pool, count=40, per_function=4, seed=0)
    assert len(chosen) == 4
    assert {t.qualname for t in chosen} == {"f"}


def test_helpful_and_sound_ones_come_first_and_order_does_not_matter():
    pool = pool_of({("<", "<="): 20, ("<=", "<"): 20})
    pool = [
        bug(t.edit.line, t.edit.old, t.edit.new, function=t.qualname, helpful=t.edit.line % 4 == 0)
        for t in pool
    ]
    chosen = choose(pool, count=10, per_function=1, seed=0)
    assert all(t.helpful for t in chosen)
    assert choose(pool[::-1], count=10, per_function=1, seed=0) == chosen
    sound = {t.key for t in pool if not t.helpful}
    assert not any(t.helpful for t in choose(pool, count=10, per_function=1, seed=0, sound=sound))


def test_families_share_the_set():
    pool = pool_of({("<", "<="): 50, ("<=", "<"): 50})
    pool += [bug(n + 500, "a, b", "b, a", "argument_order", f"g{n}") for n in range(4)]
    chosen = choose(pool, count=20, per_function=1, seed=0)
    assert Counter(t.family for t in chosen)["argument_order"] >= 3


def test_names_have_no_direction():
    kind = bug(1, "a", "b", "wrong_variable").kind
    assert opposite(kind) == kind
    assert opposite(("comparison", "<", "<=")) == ("comparison", "<=", "<")


def test_tries_take_the_families_in_turn():
    import random

    edits = [(Edit(path="p", line=n, old="x", new="y"), "wrong_variable") for n in range(50)]
    edits += [(Edit(path="p", line=60, old="<", new=">"), "comparison")]
    chosen = spread(edits, 4, random.Random(0))
    assert len(chosen) == 4
    assert "comparison" in [family for _, family in chosen]
