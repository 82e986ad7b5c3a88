"""Whether a chosen bug makes a sound task: it fails surely, its repair passes, nothing leaks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from insitu.tasks.bench import Bench
from insitu.tasks.leaks import sweep_function
from insitu.tasks.mutate import apply_edit, candidate_edits, reverse
from insitu.tasks.trials import Trial
from insitu.types import CandidateEdit, Edit

MOST_FAILING = 5
MOST_PASSING = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """What came of one bug."""

    key: str
    """`Trial.key`."""
    problem: str
    """Empty if the task is sound."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    legal_edits: int = 0
    candidates: tuple[CandidateEdit, ...] = ()
    """Every legal edit of the broken function. Without `candidates` only the repair is marked as
    one that passes, and the others were not run."""


def validate(trial: Trial, bench: Bench, places: Iterable[Path], *, candidates: bool) -> Validation:
    """Check one bug; with `candidates` also run every legal edit of the broken function.

    The trial itself was the first repeat; two more follow, the last of them with everything
    imported anew. The unmodified tests have passed three times in the survey.

    Args:
        trial: a killed bug.
        bench: of the bug's function.
        places: what the agent can reach: the source tree and the environment.
        candidates: run each single further edit, to record which make the tests pass.
    """
    failing, passing = trial.failing[:MOST_FAILING], trial.passing[:MOST_PASSING]
    tests = [*failing, *passing]
    for fresh in (False, True):
        result = bench.run(tests, (trial.edit,), fresh=fresh)
        if result.status != "done":
            return Validation(key=trial.key, problem=f"broken: {result.status}")
        if set(result.failed) != set(failing) or set(result.passed) != set(passing):
            return Validation(key=trial.key, problem="flaky")
    problem = _repair(trial, bench, tests) or _leak(trial, bench.source, places)
    if problem:
        return Validation(key=trial.key, problem=problem)
    outcomes = _candidates(trial, bench, tests) if candidates else legal_edits(trial, bench.source)
    if candidates and not any(c.passes and c.edit == reverse(trial.edit) for c in outcomes):
        return Validation(key=trial.key, problem="the repair is no legal edit that passes")
    return Validation(
        key=trial.key,
        problem="",
        fail_to_pass=failing,
        pass_to_pass=passing,
        legal_edits=len(outcomes),
        candidates=outcomes,
    )


def _candidates(trial: Trial, bench: Bench, tests: Sequence[str]) -> tuple[CandidateEdit, ...]:
    return tuple(
        replace(c, passes=_pass(bench, tests, (trial.edit, c.edit)))
        for c in legal_edits(trial, bench.source)
    )


def legal_edits(trial: Trial, intact: str) -> tuple[CandidateEdit, ...]:
    """Every legal edit of the broken function; none is run, and only the repair passes."""
    broken = apply_edit(intact, trial.edit)
    edits = candidate_edits(broken, trial.path, trial.first_line, trial.last_line)
    back = reverse(trial.edit)
    return tuple(CandidateEdit(edit=e, family=family, passes=e == back) for e, family in edits)


def _pass(bench: Bench, tests: Sequence[str], edits: tuple[Edit, ...]) -> bool:
    result = bench.run(tests, edits, stop_early=True)
    return result.status == "done" and set(result.passed) == set(tests)


def _repair(trial: Trial, bench: Bench, tests: Sequence[str]) -> str:
    back = reverse(trial.edit)
    if apply_edit(apply_edit(bench.source, trial.edit), back) != bench.source:
        return "the reverse edit does not restore the file"
    return "" if _pass(bench, tests, (trial.edit, back)) else "the repair does not pass"


def _leak(trial: Trial, intact: str, places: Iterable[Path]) -> str:
    finds = sweep_function(places, path=trial.path, qualname=trial.qualname, intact=intact)
    return "a copy of the function is in reach" if finds else ""
