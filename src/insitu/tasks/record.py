"""What insitu keeps about a task beside Harbor's files: `insitu.json`."""

from dataclasses import dataclass

from insitu.types import CandidateEdit, Edit


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """Everything about one task that insitu builds. Never shown to the agent.

    Example: a bug in `toolz/itertoolz.py` has `base="toolz-1.2.0"` and `workdir="/home/dev/toolz"`.
    """

    task_id: str
    base: str
    """Name of the folder under `<set>/bases`."""
    env: str
    """Name of the folder under `<set>/envs`."""
    workdir: str
    import_root: str
    """`.` or `src`, relative to `workdir`: what goes on PYTHONPATH before the workdir."""
    path: str
    """The broken file."""
    qualname: str
    first_line: int
    """The line of `def`."""
    last_line: int
    bug: Edit
    """From intact to broken."""
    fix: Edit
    """The reverse."""
    family: str
    helpful: bool
    """Whether a failing test points at the bug: a frame at most one line away, or its word."""
    use: str
    """`rl`, `sft` or `eval`."""
    order: int
    """Rank in the balanced order of the set; every prefix is balanced."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    error: str
    """Exception and message of the first failing test."""
    legal_edits: int
    """Candidate edits of the broken function."""
    verifier_timeout_s: float
    licence: str
    digest: str
    """Of the base, the bug and the tests: everything that defines the task."""
    candidates: tuple[CandidateEdit, ...] = ()
    """Every legal edit of the broken function."""
    outcomes_run: bool = True
    """Whether each candidate was run; if not, only the repair is marked as one that passes."""
