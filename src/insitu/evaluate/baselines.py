"""What can be had without a model: expected pass rates, exact, from each task's legal edits.

Both baselines know which function is broken and which edits are legal there, and try distinct
edits one after the other until the tests pass or the tries are used up. They stand beside every
policy so that a gain is not mistaken for understanding.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from insitu.evaluate.stats import Estimate, pass_at_1
from insitu.tasks.mutate import core
from insitu.types import CandidateEdit

Ranking = Sequence[Sequence[CandidateEdit]]
"""Candidates in the order in which they are tried; those of one inner sequence in random order."""

FixKey = tuple[str, str, str]
"""Old text, new text, family of a candidate edit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The expected pass rate of a rule that needs no model.

    Example: `Baseline(name="table", tries=5, rate=Estimate(…), per_task={"t1": 0.2, …})`.
    """

    name: str
    tries: int
    """Distinct edits it may try; with each it runs the tests once."""
    rate: Estimate
    per_task: dict[str, float]
    """Chance to pass, by task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixTable:
    """How often each kind of edit was the fix in training tasks, and how often it was possible."""

    fixes: dict[FixKey, int]
    seen: dict[FixKey, int]

    def rank(self, candidates: Sequence[CandidateEdit], *, by: str = "count") -> Ranking:
        """Candidates grouped by descending score; equal scores share a group.

        Args:
            candidates: the legal edits of one task.
            by: `count`, how often the edit was the fix; or `rate`, how often it was the fix where
                it was possible, with one failure added so that rare edits do not lead.
        """
        groups: dict[float, list[CandidateEdit]] = {}
        for candidate in candidates:
            key = fix_key(candidate)
            score = float(self.fixes.get(key, 0))
            if by == "rate":
                score /= self.seen.get(key, 0) + 1
            groups.setdefault(score, []).append(candidate)
        return [groups[score] for score in sorted(groups, reverse=True)]


def fix_key(candidate: CandidateEdit) -> FixKey:
    """What the table counts of a candidate edit: the change itself, not the names around it."""
    return (*core(candidate.edit, candidate.family), candidate.family)


def fit_table(training: Iterable[Sequence[CandidateEdit]]) -> FixTable:
    """Count over the training tasks' candidate edits which of them passed."""
    fixes: Counter[FixKey] = Counter()
    seen: Counter[FixKey] = Counter()
    for candidates in training:
        for candidate in candidates:
            seen[fix_key(candidate)] += 1
            fixes[fix_key(candidate)] += candidate.passes
    return FixTable(fixes=+fixes, seen=dict(seen))


def chance_to_pass(ranking: Ranking, tries: int) -> float:
    """Chance that one of the first `tries` distinct edits passes.

    Within a group of equal score the order is random: drawing r of n without replacement misses
    all m that pass with probability C(n-m, r) / C(n, r).
    """
    left = tries
    for group in ranking:
        if left <= 0:
            return 0.0
        n, m = len(group), sum(candidate.passes for candidate in group)
        if m:
            r = min(left, n)
            return 1.0 - math.comb(n - m, r) / math.comb(n, r)
        left -= n
    return 0.0


def random_baseline(
    tasks: Mapping[str, Sequence[CandidateEdit]], *, tries: int, seed: int
) -> Baseline:
    """Random legal edits, each tried at most once.

    Args:
        tasks: the legal edits of each task, by task id.
        tries: distinct edits; give it the test runs the policy has.
        seed: of the interval's resampling; the rate itself is exact.
    """
    chances = {task: chance_to_pass([edits], tries) for task, edits in tasks.items()}
    return _baseline("random", chances, tries, seed)


def table_baseline(
    table: FixTable,
    tasks: Mapping[str, Sequence[CandidateEdit]],
    *,
    tries: int,
    seed: int,
    by: str = "count",
) -> Baseline:
    """The most frequent fixes first, each tried at most once; ties are averaged exactly."""
    chances = {
        task: chance_to_pass(table.rank(edits, by=by), tries) for task, edits in tasks.items()
    }
    return _baseline("table" if by == "count" else f"table_{by}", chances, tries, seed)


def _baseline(name: str, chances: dict[str, float], tries: int, seed: int) -> Baseline:
    rate = pass_at_1(list(chances.values()), seed=seed)
    return Baseline(name=name, tries=tries, rate=rate, per_task=chances)
