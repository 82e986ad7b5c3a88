"""Tasks and the verdicts on attempts at them."""

from dataclasses import dataclass, field

from insitu.types.episodes import Edit


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateEdit:
    """One legal edit of a task's function, with its known outcome (for baselines without a model).

    Never shown to the agent.
    """

    edit: Edit
    family: str
    """Kind of change, e.g. `comparison`."""
    passes: bool
    """Whether the task's tests pass with this edit alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Something to do and a way to check it, read from a folder in Harbor's format."""

    task_id: str
    folder: str
    """Absolute path of the task folder."""
    instruction: str
    """Text of `instruction.md`: the user's message to the agent."""
    layers: tuple[str, ...]
    """Folders stacked into the workspace the agent gets, first lowest."""
    workdir: str
    """Path of the workspace inside the sandbox."""
    env_path: str
    """Folder of the Python environment (or other runtime) shown to the sandbox read-only;
    empty where the task brings its own image."""
    agent_timeout_s: float
    verifier_timeout_s: float
    fail_to_pass: tuple[str, ...] = ()
    """Names of the tests that fail before and pass after."""
    pass_to_pass: tuple[str, ...] = ()
    """Names of tests that pass before and must pass after."""
    source: str = ""
    """Package and version, or repository and commit."""
    family: str = ""
    """Kind of bug, e.g. `comparison`."""
    digest: str = ""
    """Hex digest of everything that defines the task; verdicts are cached by it."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The judge's answer on one workspace diff."""

    passed: bool
    tests_passed: int
    tests_total: int
    detail: str = ""
    """Short evidence: names of failing tests, time-out, nothing changed."""
    wall_s: float = 0.0
    cached: bool = False
