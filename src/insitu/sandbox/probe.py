"""What `insitu doctor` says about sandboxes on this machine."""

import asyncio
import tempfile
from pathlib import Path

from insitu.sandbox.backends import BACKENDS, open_backend
from insitu.types import ConfigError


def probe() -> list[tuple[str, bool, str]]:
    """Per back-end: its name, whether it works here, and details or what to do about it.

    Each is really tried: a sandbox is made, runs a command and is destroyed.
    """
    with tempfile.TemporaryDirectory(prefix="insitu-") as folder:
        return [asyncio.run(_probe(name, Path(folder, name))) for name in sorted(BACKENDS)]


async def _probe(name: str, root: Path) -> tuple[str, bool, str]:
    try:
        backend = open_backend(name, root)
    except ConfigError as e:
        return name, False, str(e)
    try:
        problems = await backend.preflight()
        if problems:
            return name, False, "; ".join(problems)
        describe = getattr(backend, "describe", None)
        return name, True, describe() if describe else "works"
    finally:
        await backend.close()
