"""Recipes: read, overridden, checked."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from insitu.config.check import check, refuse_unknown
from insitu.config.tree import Config
from insitu.types import ConfigError

OVERRIDE = "--set"
"""What an error calls the place of an override."""


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The recipe at `path` with overrides such as `rl.group_size=16`, later ones winning.

    An override's value is read as TOML (`16`, `true`, `["a"]`), and as plain text where it is
    none.

    Raises:
        ConfigError: no such file, not TOML, an unknown key or a wrong value; in one line.
    """
    values = read_toml(path)
    config = load_values(values, overrides, source=str(path))
    if config.run.name:
        return config
    return config.model_copy(update={"run": config.run.model_copy(update={"name": path.stem})})


def load_values(values: dict[str, Any], overrides: Sequence[str], *, source: str) -> Config:
    """As `load`, from tables that are no file; `source` is what an error calls them."""
    # The tables before the overrides, so that an error names the place it comes from.
    config = check(Config, values, source=source)
    for override in overrides:
        changed = _parse(override)
        refuse_unknown(Config, changed, source=OVERRIDE)
        values = _merged(values, changed)
        config = check(Config, values, source=OVERRIDE)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, or not TOML; names the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}", remedy="give the path of a recipe") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not TOML: {e}", remedy="correct the file") from e


def _parse(override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"{OVERRIDE} {override}: not of the form section.key=value")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def _merged(values: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(values[key], value)
        for key, value in changed.items()
        if isinstance(value, dict) and isinstance(values.get(key), dict)
    }
    return values | changed | both
