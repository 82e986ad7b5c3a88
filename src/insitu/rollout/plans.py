"""Which task comes next: every task once per epoch, in an order that the seed alone decides."""

import random
from collections.abc import Iterator, Sequence
from itertools import count

from insitu.rollout.dispatcher import GroupPlan
from insitu.types import Task


def plan_groups(tasks: Sequence[Task], *, seed: int, start: int = 0) -> Iterator[GroupPlan]:
    """Endless groups, one task each; no task comes twice within an epoch.

    Args:
        tasks: what to train on; order does not matter.
        seed: decides each epoch's order and each group's sampling seed.
        start: number of groups that were planned before (after a resume).

    Raises:
        ValueError: there are no tasks.
    """
    if not tasks:
        raise ValueError("no tasks to train on")
    ordered = sorted(tasks, key=lambda t: t.task_id)
    number = 0
    for epoch in count():
        order = random.Random(f"{seed}/{epoch}").sample(ordered, len(ordered))
        for task in order:
            if number >= start:
                yield GroupPlan(
                    group_id=f"g{number:06d}", task=task, seed=seed * 1_000_000 + number
                )
            number += 1
