from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from insitu.ledger.intervals import intersect, length, share, union

_intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda p: (min(p), max(p))), max_size=8
)


def _moments(intervals):
    return {t for start, end in intervals for t in range(start, end)}


@given(a=_intervals, b=_intervals, of=_intervals)
def test_intervals_are_sets_of_moments(a, b, of):
    assert _moments(union(a)) == _moments(a)
    assert _moments(intersect(a, b)) == _moments(a) & _moments(b)
    assert length(a) == len(_moments(a))
    whole = _moments(of)
    inside = whole & _moments(a) & _moments(b)
    assert share([a, b], of) == (len(inside) / len(whole) if whole else 0.0)


@given(a=_intervals)
def test_a_union_is_disjoint_and_in_order(a):
    merged = union(a)
    assert all(start < end for start, end in merged)
    assert all(one[1] < two[0] for one, two in pairwise(merged))
