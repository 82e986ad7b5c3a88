"""Choose among killed bugs so that the kind of a repair does not give it away."""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from math import sqrt

from insitu.tasks.trials import Trial

Kind = tuple[str, str, str]
"""Family, old, new: from intact to broken."""

_UNDIRECTED = "<name>"
_WEIGHT = {"wrong_variable": 2.0}
"""It holds over a third of all legal edits; were it rare among the bugs, a table of frequent
repairs would be right more often by never trying it."""


def opposite(kind: Kind) -> Kind:
    """The kind of the change that takes one of this kind back."""
    family, old, new = kind
    return kind if old == _UNDIRECTED else (family, new, old)


class _Chooser:
    def __init__(
        self, pool: Sequence[Trial], per_function: int, seed: int, sound: Collection[str]
    ) -> None:
        rng = random.Random(seed)
        shuffled = sorted(pool, key=lambda t: t.key)
        rng.shuffle(shuffled)
        # Sound and helpful ones last, because they are taken from the end.
        shuffled.sort(key=lambda t: (t.key in sound, t.helpful))
        self.left: dict[Kind, list[Trial]] = defaultdict(list)
        for trial in shuffled:
            self.left[trial.kind].append(trial)
        self.chosen: list[Trial] = []
        self.per_function = per_function
        self.used: Counter[tuple[str, str, str]] = Counter()
        self.taken: Counter[Kind] = Counter()
        self.by_family: Counter[str] = Counter()
        sizes = Counter(t.family for t in pool)
        # Between equal shares and the shares of nature: rare families count, common ones more.
        self.weight = {f: sqrt(n) * _WEIGHT.get(f, 1.0) for f, n in sizes.items()}
        self.open = {family: self._pairs(family) for family in sizes}

    def _pairs(self, family: str) -> set[frozenset[Kind]]:
        kinds = [k for k in self.left if k[0] == family]
        return {frozenset((k, opposite(k))) for k in kinds if opposite(k) in self.left}

    def run(self, count: int) -> list[Trial]:
        while len(self.chosen) < count:
            families = [f for f, pairs in self.open.items() if pairs]
            if not families:
                break
            self._take(min(families, key=lambda f: (self.by_family[f] / self.weight[f], f)))
        return self.chosen[:count]

    def _take(self, family: str) -> None:
        def rank(pair: frozenset[Kind]) -> tuple[float, list[Kind]]:
            rarest = min(len(self.left[k]) + self.taken[k] for k in pair)
            return self.taken[min(pair)] / sqrt(rarest), sorted(pair)

        pair = min(self.open[family], key=rank)
        picks: list[Trial] = []
        for kind in sorted(pair):
            pick = self._next(kind, picks)
            if pick is None:
                self.open[family].discard(pair)
                return
            picks.append(pick)
        for pick in picks:
            self.left[pick.kind].remove(pick)
            self.taken[pick.kind] += 1
            self.used[self._function(pick)] += 1
            self.by_family[family] += 1
        self.chosen += picks

    def _next(self, kind: Kind, picks: Sequence[Trial]) -> Trial | None:
        together = Counter(self._function(p) for p in picks)
        for trial in reversed(self.left[kind]):
            place = self._function(trial)
            if self.used[place] + together[place] < self.per_function:
                return trial
        return None

    @staticmethod
    def _function(trial: Trial) -> tuple[str, str, str]:
        return trial.base, trial.path, trial.qualname


def choose(
    pool: Sequence[Trial],
    *,
    count: int,
    per_function: int,
    seed: int,
    sound: Collection[str] = (),
) -> list[Trial]:
    """Up to `count` bugs, each kind as often as its opposite, families spread, helpful first.

    The order is such that every prefix is balanced, give or take one. The same pool, seed and
    `sound` give the same choice, whatever the pool's order.

    Args:
        pool: bugs that were tried.
        count: how many are wanted.
        per_function: at most so many of one function.
        seed: of the choice among equals.
        sound: keys of bugs that are validated already; they are taken before others of a kind.
    """
    killed = [t for t in pool if t.status == "killed"]
    return _Chooser(killed, per_function, seed, sound).run(count)


def imbalance(chosen: Sequence[Trial]) -> float:
    """Share of the bugs that have no partner of the opposite kind; 0 is perfect balance."""
    counts = Counter(t.kind for t in chosen)
    return sum(max(0, n - counts[opposite(k)]) for k, n in counts.items()) / max(1, len(chosen))
