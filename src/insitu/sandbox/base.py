"""The sandbox protocol: one isolated computer, and the back-end that makes them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from insitu.types import Change, ExecResult, SandboxSpec


class Sandbox(Protocol):
    """One isolated computer. After `destroy` every other method raises `SandboxError`."""

    sandbox_id: str

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        """Run a command to its end. A time-out kills its whole process tree.

        Raises:
            SandboxError: the sandbox is gone or could not start the command at all.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """Bytes of a regular file; links never lead outside the sandbox.

        Raises:
            FileNotFoundError: there is no such regular file.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a regular file inside the workdir."""
        ...

    async def changes(self) -> tuple[Change, ...]:
        """What differs in the workdir from the layers below, sorted by path."""
        ...

    async def apply(self, changes: Sequence[Change]) -> None:
        """Carry the changes of another sandbox into this one's workdir."""
        ...

    async def destroy(self) -> None:
        """End all its processes and remove every trace of it; may be called twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes on one machine."""

    name: str

    async def preflight(self) -> list[str]:
        """What keeps this back-end from working here, each with its remedy; empty if it works."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox.

        Raises:
            SandboxError: it could not be made; nothing of it is left.
        """
        ...

    async def reap(self) -> int:
        """Remove what dead owners left behind; how many sandboxes that were."""
        ...

    async def close(self) -> None:
        """Destroy all sandboxes of this back-end."""
        ...
