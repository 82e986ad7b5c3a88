"""Values against a model, with errors that name file, key and remedy.

Any room with a file of its own (`product.toml`, `task.toml`) may check it here.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from insitu.types import ConfigError

M = TypeVar("M", bound=BaseModel)


def check(model: type[M], values: Mapping[str, Any], *, source: str) -> M:
    """`values` as a `model`; `source` is what an error calls them, e.g. a file's path.

    Raises:
        ConfigError: an unknown key (with the nearest known one) or a wrong value.
    """
    refuse_unknown(model, values, source=source)
    try:
        return model.model_validate(_with_tuples(values))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        given = "" if first["type"] == "missing" else f" (given: {first['input']!r})"
        raise ConfigError(
            f"{source}: {key}: {_lower_first(first['msg'].removeprefix('Value error, '))}{given}"
        ) from e


def refuse_unknown(model: type[BaseModel], values: Mapping[str, Any], *, source: str) -> None:
    """Refuse the first key, at any level, that `model` does not have.

    Raises:
        ConfigError: names it, and the nearest known key.
    """
    for path, table in _unknown(model, values, ()):
        near = _nearest(model, table, path[-1])
        hint = f"; did you mean {near}?" if near else f"; known: {', '.join(table.model_fields)}"
        raise ConfigError(f"{source}: {'.'.join(path)}: unknown key{hint}")


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of all values that the tree holds, in order."""
    for name, field in model.model_fields.items():
        inner = _table_of(field.annotation)
        if inner is None:
            yield prefix + name
        else:
            yield from keys(inner, f"{prefix}{name}.")


def _unknown(
    model: type[BaseModel], values: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    for name, value in values.items():
        here = (*path, name)
        if name not in model.model_fields:
            yield here, model
            continue
        inner = _table_of(model.model_fields[name].annotation)
        for item in value if isinstance(value, list | tuple) else (value,):
            if inner is not None and isinstance(item, Mapping):
                yield from _unknown(inner, item, here)


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, alone or in a tuple; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for a in get_args(annotation) if (inner := _table_of(a))), None)


def _nearest(root: type[BaseModel], table: type[BaseModel], name: str) -> str:
    """The key that was probably meant: here, or under another section."""
    if close := difflib.get_close_matches(name, table.model_fields, 1, 0.6):
        return close[0]
    return next((key for key in keys(root) if key.rpartition(".")[2] == name), "")


def _with_tuples(value: Any) -> Any:
    """TOML's arrays as tuples, which a strict model insists on."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return value


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
