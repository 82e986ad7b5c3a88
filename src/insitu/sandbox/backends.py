"""The sandbox back-ends by name. Each is imported only when it is used."""

import difflib
from importlib import import_module
from pathlib import Path

from insitu.sandbox.base import SandboxBackend
from insitu.types import ConfigError

BACKENDS: dict[str, tuple[str, str]] = {
    # name: ("module:Class", extra that installs what it needs; "" for none)
    "bubblewrap": ("insitu.sandbox.bubblewrap:BubblewrapBackend", ""),
}


def open_backend(name: str, root: Path) -> SandboxBackend:
    """The back-end `name`, keeping its state in the folder `root`.

    Raises:
        ConfigError: no such back-end, or the extra it needs is not installed.
    """
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        hint = f"did you mean {near[0]!r}? Otherwise " if near else ""
        raise ConfigError(
            f"sandbox back-end {name!r} is not known",
            remedy=f"{hint}use one of: {', '.join(sorted(BACKENDS))}",
        )
    target, extra = BACKENDS[name]
    module, _, attribute = target.partition(":")
    try:
        backend: SandboxBackend = getattr(import_module(module), attribute)(root)
    except ImportError as e:
        if not extra:
            raise
        raise ConfigError(
            f"sandbox back-end {name!r} needs a package that is not installed ({e.name})",
            remedy=f"pip install 'insitu[{extra}]'",
        ) from e
    return backend
