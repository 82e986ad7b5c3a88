"""Errors, named by the boundary that was crossed.

InsituError
├── UsageError          the user can fix it: exit code 2, one line, with the remedy
│   ├── ConfigError     a key or value of the config tree
│   ├── TaskError       a task folder, package or repository that cannot be used
│   └── CorruptError    a file that is not what it should be (shard, ledger, checkpoint)
└── BoundaryError       a fault of the system: retried, never counted for the policy
    ├── SandboxError
    ├── EngineError
    ├── GatewayError
    ├── ProductError    the agent could not be started (its failing is an outcome, not this)
    └── TrainError
"""


class InsituError(Exception):
    """Root of all errors that insitu raises on purpose."""


class UsageError(InsituError):
    """Something the user can fix.

    Example: `UsageError("recipes/demo/rl.toml: no such file", remedy="give the path of a recipe")`.
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}. {remedy[:1].upper()}{remedy[1:]}." if remedy else problem)


class ConfigError(UsageError):
    """A key or value of the config tree is wrong; names file, key, value and remedy."""


class TaskError(UsageError):
    """A task folder, package or repository cannot be used; names it and says why."""


class CorruptError(UsageError):
    """A file is damaged or incomplete; names it and says how to get a good one."""


class BoundaryError(InsituError):
    """A fault of the system. It is retried and never counts for or against the policy."""


class SandboxError(BoundaryError):
    """A sandbox could not be made, reached or destroyed."""


class EngineError(BoundaryError):
    """The engine died, refused or did not answer."""


class GatewayError(BoundaryError):
    """The gateway could not serve or record a request."""


class ProductError(BoundaryError):
    """The product's agent could not be started at all."""


class TrainError(BoundaryError):
    """The trainer died or could not take a batch."""
