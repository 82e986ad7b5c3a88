"""What a sandbox is asked for, and what comes back."""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one sandbox; each holds for all its processes together."""

    memory_mb: int = 512
    pids: int = 64
    cpus: float = 1.0
    open_files: int = 256
    disk_mb: int = 64
    """Of writable space; where the back-end cannot hold it, `doctor` says so."""
    output_bytes: int = 262_144
    """Of stdout and stderr kept from one exec; the rest is discarded and marked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A host folder or file shown read-only in the sandbox."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """The one way out: connections inside to `127.0.0.1:port` arrive at a host socket.

    Example: `Forward(port=8080, socket="/run/…/gateway.sock")`.
    """

    port: int
    socket: str
    """Path of a Unix socket on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSpec:
    """One isolated computer.

    Example: `SandboxSpec(layers=("/bases/toolz", "/cache/task-1"), workdir="/home/dev/toolz")`.
    """

    layers: tuple[str, ...]
    """Host folders stacked read-only, first lowest; what is written goes to a layer above."""
    workdir: str
    """Where the stack appears, and where commands start; inside the user's home."""
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    """The whole environment besides PATH, HOME, LANG and USER."""
    forwards: tuple[Forward, ...] = ()
    limits: Limits = field(default_factory=Limits)
    user: str = "dev"
    hostname: str = "workstation"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecResult:
    """What one command did."""

    exit_code: int
    """The exit code; 128 + n for signal n; 124 where it timed out."""
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """Output beyond the limit was discarded."""
    timed_out: bool = False
    oom: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0


class ChangeKind(StrEnum):
    """What happened to a path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One path that differs from the layers below.

    Example: `Change(path="pkg/core.py", kind=ChangeKind.MODIFIED, content=b"…", mode=0o644)`.
    """

    path: str
    """Relative to the workdir, POSIX, never absolute, never with `..`."""
    kind: ChangeKind
    content: bytes = b""
    mode: int = 0o644
    symlink: str | None = None
    """Target of a symbolic link; then `content` is empty."""
