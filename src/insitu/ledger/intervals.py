"""Interval arithmetic over half-open intervals of time."""

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Start and end in seconds, end not before start."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as disjoint intervals in order; empty ones vanish, touching ones join."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersect(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """The moments that lie in both, as disjoint intervals in order."""
    left, right = union(a), union(b)
    both: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            both.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return both


def length(intervals: Iterable[Interval]) -> float:
    """Seconds covered; moments in several intervals count once."""
    return math.fsum(end - start for start, end in union(intervals))


def share(parts: Sequence[Iterable[Interval]], of: Iterable[Interval]) -> float:
    """Which share of the moments in `of` lies in every one of `parts`; 0.0 where `of` is empty."""
    whole = union(of)
    inside = whole
    for part in parts:
        inside = intersect(inside, part)
    total = length(whole)
    return length(inside) / total if total else 0.0
