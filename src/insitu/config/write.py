"""The resolved tree as TOML that `load` reads back to the same tree."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from insitu.config.tree import Config


def to_toml(config: Config, *, describe: bool = False) -> str:
    """Every key with its value; with `describe`, each with its description above it."""
    return "\n".join(_table(config, "", describe)).strip() + "\n"


def _table(table: BaseModel, prefix: str, describe: bool) -> Iterator[str]:
    later: list[tuple[str, Any]] = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, BaseModel) or _holds_tables(value):
            later.append((name, value))
            continue
        if describe and field.description:
            yield f"# {' '.join(field.description.split())}"
        yield f"{name} = {_value(value)}"
    for name, value in later:
        single = isinstance(value, BaseModel)
        for item in [value] if single else value:
            yield ""
            yield f"[{prefix}{name}]" if single else f"[[{prefix}{name}]]"
            yield from _table(item, f"{prefix}{name}.", describe)


def _holds_tables(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML string, except that TOML wants DEL escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)
