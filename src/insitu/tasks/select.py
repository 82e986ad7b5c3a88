"""Choose among killed bugs so that the kind of a repair does not give it away.

A guesser without a model knows which edits are legal in the broken function. Their kinds tell it
nothing if each kind is the repair as often as if every repair were drawn from the legal edits of
its task. The choice is greedy: next comes a bug whose kind of repair is furthest behind that, by
the rule that shares out seats among parties (divisors, after Sainte-Laguë).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from insitu.kit.digest import digest_bytes
from insitu.tasks.trials import Counts, Kind, Trial, opposite

Place = tuple[str, str, str]
"""Source tree, path and qualified name of a function."""

_FIRST_SEAT = 0.3
"""The divisor of a kind not taken yet; less lets more kinds in that are rare in the code."""
_HELPFUL_SHARE = 0.65
_UNHELPFUL = 0.5
"""How a kind of which no helpful bug is left counts while fewer than this share are helpful."""


def shares(trial: Trial, legal: Counts) -> dict[Kind, float]:
    """How likely each kind is the repair if it is drawn from the legal edits of the broken text.

    The broken text has the legal edits of the intact one, with the repair in the bug's place.

    Args:
        trial: the bug.
        legal: legal edits of the intact function by kind.
    """
    counts = Counter(legal)
    counts[trial.kind] -= 1
    counts[trial.repair] += 1
    counts = +counts
    return {kind: n / counts.total() for kind, n in counts.items()}


class _Chooser:
    def __init__(
        self,
        pool: Sequence[Trial],
        legal: Callable[[Trial], Counts],
        per_function: int,
        seed: int,
        sound: Collection[str],
    ) -> None:
        # By a digest of its own, so that the order of some does not hang on the others.
        shuffled = sorted(pool, key=lambda t: digest_bytes(str(seed).encode(), t.key.encode()))
        # Helpful ones last, because they are taken from the end.
        shuffled.sort(key=lambda t: (t.helpful, t.key in sound))
        self.left: dict[Kind, list[Trial]] = defaultdict(list)
        for trial in shuffled:
            self.left[trial.repair].append(trial)
        self.legal = legal
        self.per_function = per_function
        self.due: dict[Kind, float] = defaultdict(float)
        self.taken: Counter[Kind] = Counter()
        self.used: Counter[Place] = Counter()
        self.helpful = 0

    def run(self, count: int) -> list[Trial]:
        chosen: list[Trial] = []
        while len(chosen) < count and (trial := self._next()):
            chosen.append(trial)
            self.taken[trial.repair] += 1
            self.helpful += trial.helpful
            self.used[_place(trial)] += 1
            for kind, share in shares(trial, self.legal(trial)).items():
                self.due[kind] += share
        return chosen

    def _next(self) -> Trial | None:
        for kind in list(self.left):
            left = self.left[kind]
            while left and self.used[_place(left[-1])] >= self.per_function:
                left.pop()
            if not left:
                del self.left[kind]
        return self.left[min(self.left, key=self._rank)].pop() if self.left else None

    def _rank(self, kind: Kind) -> tuple[float, int, Kind]:
        """Furthest behind first; among equals the one that is rarer than its opposite."""
        behind = self.due[kind] / (self.taken[kind] + _FIRST_SEAT)
        wanted = self.helpful < _HELPFUL_SHARE * self.taken.total()
        if wanted and not self.left[kind][-1].helpful:
            behind *= _UNHELPFUL
        return -behind, self.taken[kind] - self.taken[opposite(kind)], kind


def _place(trial: Trial) -> Place:
    return trial.base, trial.path, trial.qualname


def choose(
    pool: Sequence[Trial],
    legal: Callable[[Trial], Counts],
    *,
    count: int,
    per_function: int,
    seed: int,
    sound: Collection[str] = (),
) -> list[Trial]:
    """Up to `count` bugs, each kind of repair as often as chance would have it, helpful first.

    Every prefix is as even as the pool allows. The same pool, seed and `sound` give the same
    choice, whatever the pool's order.

    Args:
        pool: bugs that were tried.
        legal: the legal edits of a bug's intact function, by kind.
        count: how many are wanted.
        per_function: at most so many of one function.
        seed: of the choice among equals.
        sound: keys of bugs that are validated already; they are taken before others that are as
            helpful.
    """
    killed = [t for t in pool if t.status == "killed"]
    return _Chooser(killed, legal, per_function, seed, sound).run(count)


def unevenness(chosen: Sequence[Trial], legal: Callable[[Trial], Counts]) -> float:
    """Total variation between the families of the repairs and those of the legal edits, 0 to 1.

    0: each family is the repair as often as if every repair were drawn from the legal edits.
    """
    behind: dict[str, float] = defaultdict(float)
    for trial in chosen:
        behind[trial.family] -= 1
        for (family, *_), share in shares(trial, legal(trial)).items():
            behind[family] += share
    return sum(max(0.0, n) for n in behind.values()) / max(1, len(chosen))
