"""Frozen dataclasses ⇄ JSON, for files and for the wire. Unknown keys are refused on reading."""

from dataclasses import is_dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, with_config

from insitu import types

T = TypeVar("T")

_CONFIG = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")
for _name in types.__all__:
    if is_dataclass(getattr(types, _name)):
        # Set on each class: pydantic does not hand a dataclass's settings down to its fields.
        with_config(_CONFIG)(getattr(types, _name))


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: object) -> bytes:
    """The value of one of `insitu.types` as UTF-8 JSON; bytes fields become base64."""
    return _adapter(type(value)).dump_json(value)


def from_json(kind: type[T], data: bytes | str) -> T:
    """Read what `to_json` wrote.

    Raises:
        pydantic.ValidationError: the data is not a `kind` (unknown or missing key, wrong type).
    """
    value: T = _adapter(kind).validate_json(data)
    return value
