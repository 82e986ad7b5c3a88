from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.rollout.plans import plan_groups
from tests.unit.rollout.test_dispatcher import make_task


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 40))
def test_each_epoch_has_every_task_once_and_a_resume_goes_on_where_it_stopped(n, seed, start):
    tasks = [make_task(f"t{i}") for i in range(n)]
    plans = list(islice(plan_groups(tasks, seed=seed), 60))
    for epoch in range(60 // n):
        assert len({p.task.task_id for p in plans[epoch * n : (epoch + 1) * n]}) == n
    assert (
        list(islice(plan_groups(tasks[::-1], seed=seed, start=start), 5))
        == plans[start : start + 5]
    )
    assert len({p.seed for p in plans}) == len({p.group_id for p in plans}) == 60


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="no tasks"):
        next(plan_groups([], seed=0))
