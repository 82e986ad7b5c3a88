"""Completed groups → batches for the trainer."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from insitu.types import Group


async def form_batches(
    groups: AsyncIterator[Group],
    *,
    size: int,
    refuse: Callable[[Group], str],
    discard: Callable[[str, str], None],
) -> AsyncGenerator[tuple[Group, ...], None]:
    """Batches of `size` groups, in the order in which they completed.

    Args:
        groups: completed groups.
        size: groups per batch; a last, smaller batch is not given.
        refuse: why a group may not be trained (`no signal`, `stale`), or empty. It is asked when
            the batch is full, since a group may become stale while it waits.
        discard: told of each refused group and why.
    """
    waiting: list[Group] = []
    async for group in groups:
        waiting.append(group)
        if len(waiting) < size:
            continue
        kept = []
        for candidate in waiting:
            if reason := refuse(candidate):
                discard(candidate.group_id, reason)
            else:
                kept.append(candidate)
        waiting = kept
        if len(waiting) >= size:
            # Sorted, so that sums of floats do not depend on which episode was faster.
            yield tuple(sorted(waiting[:size], key=lambda g: g.group_id))
            waiting = waiting[size:]
