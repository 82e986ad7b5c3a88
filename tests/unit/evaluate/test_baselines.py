import itertools
import random

import pytest

from insitu.evaluate.baselines import (
    chance_to_pass,
    fit_table,
    random_baseline,
    table_baseline,
)
from insitu.types import CandidateEdit, Edit


def candidate(old: str, new: str, passes: bool = False, family: str = "f") -> CandidateEdit:
    edit = Edit(path="a.py", line=1, old=old, new=new)
    return CandidateEdit(edit=edit, family=family, passes=passes)


def edits(n: int, passing: int) -> list[CandidateEdit]:
    return [candidate("x", str(i), passes=i < passing) for i in range(n)]


def test_random_edits_are_the_exact_expectation() -> None:
    for n, m, tries in [(6, 1, 1), (6, 1, 3), (6, 2, 3), (6, 3, 4), (5, 0, 3), (3, 1, 9)]:
        pool = edits(n, m)
        orders = list(itertools.permutations(pool))
        hits = sum(any(c.passes for c in order[:tries]) for order in orders)
        assert chance_to_pass([pool], tries) == pytest.approx(hits / len(orders))


def test_without_edits_or_tries_nothing_passes() -> None:
    assert chance_to_pass([], 5) == 0.0
    assert chance_to_pass([[]], 5) == 0.0
    assert chance_to_pass([edits(3, 3)], 0) == 0.0


def test_the_table_ranks_by_how_often_an_edit_was_the_fix() -> None:
    training = [
        [candidate("<", "<=", True), candidate("0", "1")],
        [candidate("<", "<=", True), candidate("0", "1", True)],
        [candidate("<", "<="), candidate("0", "1"), candidate("and", "or", True)],
    ]
    table = fit_table(training)
    assert table.fixes == {("<", "<=", "f"): 2, ("0", "1", "f"): 1, ("and", "or", "f"): 1}
    assert table.seen[("0", "1", "f")] == 3
    new = [candidate("?", "!"), candidate("0", "1"), candidate("and", "or"), candidate("<", "<=")]
    assert [[c.edit.old for c in group] for group in table.rank(new)] == [
        ["<"], ["0", "and"], ["?"],
    ]  # fmt: skip
    by_rate = [[c.edit.old for c in group] for group in table.rank(new, by="rate")]
    assert by_rate == [["and", "<"], ["0"], ["?"]]


def test_the_family_is_part_of_what_is_counted() -> None:
    table = fit_table([[candidate("0", "1", True, family="constant")]])
    ranking = table.rank(
        [candidate("0", "1", family="boundary"), candidate("0", "1", family="constant")]
    )
    assert [c.family for group in ranking for c in group] == ["constant", "boundary"]


def test_ties_are_averaged_exactly() -> None:
    rng = random.Random(0)
    for _ in range(20):
        ranking = [edits(rng.randint(1, 4), rng.randint(0, 1)) for _ in range(3)]
        tries = rng.randint(1, 8)
        orders = [
            [c for group in order for c in group]
            for order in itertools.product(*(itertools.permutations(g) for g in ranking))
        ]
        hits = sum(any(c.passes for c in order[:tries]) for order in orders)
        assert chance_to_pass(ranking, tries) == pytest.approx(hits / len(orders))


def test_baselines_give_a_rate_with_an_interval_and_each_task() -> None:
    table = fit_table([[candidate("<", "<=", True), candidate("0", "1")]] * 3)
    tasks = {
        "t1": [candidate("<", "<=", True), candidate("0", "1")],
        "t2": [candidate("<", "<="), candidate("0", "1", True)],
    }
    ranked = table_baseline(table, tasks, tries=1, seed=0)
    assert ranked.per_task == {"t1": 1.0, "t2": 0.0}
    assert (ranked.name, ranked.rate.value, ranked.rate.tasks) == ("table", 0.5, 2)
    assert ranked.rate.low <= 0.5 <= ranked.rate.high
    drawn = random_baseline(tasks, tries=1, seed=0)
    assert drawn.per_task == {"t1": 0.5, "t2": 0.5}
    assert table_baseline(table, tasks, tries=2, seed=0, by="rate").name == "table_rate"
    assert random_baseline(tasks, tries=2, seed=0).rate.value == 1.0
