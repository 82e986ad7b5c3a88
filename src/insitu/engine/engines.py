"""The engines there are, imported when used."""

import importlib

from insitu.engine.base import Engine
from insitu.types import UsageError

ENGINES: dict[str, tuple[str, str]] = {
    "embedded": ("insitu.engine.embedded.engine:EmbeddedEngine", ""),
    "process": ("insitu.engine.client:EngineClient", ""),
    "scripted": ("insitu.engine.scripted:ScriptedEngine", ""),
}
"""Name to "module:Class" and the extra that brings what it needs (empty: none)."""


def engine_class(name: str) -> type[Engine]:
    """The class behind `name`.

    Raises:
        UsageError: the name is unknown, or what the engine needs is not installed.
    """
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name}", remedy=f"use one of {', '.join(ENGINES)}")
    place, extra = ENGINES[name]
    module, _, attribute = place.partition(":")
    try:
        found: type[Engine] = getattr(importlib.import_module(module), attribute)
    except ImportError as e:
        remedy = f"install insitu[{extra}]" if extra else "install insitu with its dependencies"
        raise UsageError(f"engine {name} needs {e.name or e}", remedy=remedy) from e
    return found
