"""The nouns of insitu as frozen, keyword-only data. Import them from here.

Everything that crosses from one room to another is one of these types. They hold no
behaviour beyond small derived properties, import nothing but the standard library,
and are persisted and sent between processes through `insitu.kit.codec`.
"""

from insitu.types.calls import Call, FinishReason, Sampling, Segment, TokenRequest, TokenResult
from insitu.types.episodes import Edit, Episode, EpisodeEnd, Group, Reward, Signal
from insitu.types.errors import (
    BoundaryError,
    ConfigError,
    CorruptError,
    EngineError,
    GatewayError,
    InsituError,
    ProductError,
    SandboxError,
    TaskError,
    TrainError,
    UsageError,
)
from insitu.types.policies import PolicyVersion
from insitu.types.sandboxes import (
    Change,
    ChangeKind,
    ExecResult,
    Forward,
    Limits,
    Mount,
    SandboxSpec,
)
from insitu.types.steps import Fault, Sample, StepReport
from insitu.types.tasks import CandidateEdit, Task, Verdict

__all__ = [
    "BoundaryError",
    "Call",
    "CandidateEdit",
    "Change",
    "ChangeKind",
    "ConfigError",
    "CorruptError",
    "Edit",
    "EngineError",
    "Episode",
    "EpisodeEnd",
    "ExecResult",
    "Fault",
    "FinishReason",
    "Forward",
    "GatewayError",
    "Group",
    "InsituError",
    "Limits",
    "Mount",
    "PolicyVersion",
    "ProductError",
    "Reward",
    "Sample",
    "Sampling",
    "SandboxError",
    "SandboxSpec",
    "Segment",
    "Signal",
    "StepReport",
    "Task",
    "TaskError",
    "TokenRequest",
    "TokenResult",
    "TrainError",
    "UsageError",
    "Verdict",
]
