"""The config tree as a page of the documentation.

Rewrite the page with `python -m insitu.config.reference > docs/configuration.md`.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from insitu.config.tree import Config

_HEAD = """\
# Configuration

A recipe is a TOML file with any of the sections below; what it leaves out has its default. Each
verb reads the sections that it needs. A value on the command line wins over the recipe:

```
insitu rl recipes/demo/rl.toml --set rl.group_size=16 --set policy.model=models/base
insitu config show recipes/demo/rl.toml --set rl.group_size=16
insitu config show --describe
```

The value of `--set` is read as TOML (`16`, `true`, `["a", "b"]`), and as plain text where it is
none. `insitu config show` prints the resolved tree, which is itself a recipe; the same text lies
as `config.toml` in the folder of an RL run or an evaluation. An unknown key is an error that
names the nearest known one, and a value of the wrong type or outside its bounds is an error that
names the key; both end with exit code 2:

```
$ insitu config show --set rl.group_sise=16
error: --set: rl.group_sise: unknown key; did you mean group_size?
```

Paths are relative to the folder in which `insitu` is started. Empty text, 0 or an empty list
stands for "not given" where the table says so.

This page is made from the code. Rewrite it after a change of the tree:

```
python -m insitu.config.reference > docs/configuration.md
```
"""
_TYPES = {str: "text", bool: "true or false", int: "whole number", float: "number"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def reference() -> str:
    """The whole page as Markdown: one table per section, one row per key."""
    sections = (line for name, field in _fields(Config) for line in _nested(name, field))
    return _HEAD + "\n".join(sections) + "\n"


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return list(model.model_fields.items())


def _section(model: type[BaseModel], name: str, *, repeated: bool) -> Iterator[str]:
    """A section's heading and table, then the sections inside it."""
    yield ""
    yield f"## `[[{name}]]`" if repeated else f"## `[{name}]`"
    yield ""
    yield " ".join((model.__doc__ or "").split())
    yield ""
    yield "| key | type | default | what it is |"
    yield "|---|---|---|---|"
    for key, field in _fields(model):
        if _table_in(field) is None or _is_repeated(field):
            cells = (f"`{name}.{key}`", _type(field), _default(field), _text(field.description))
            yield f"| {' | '.join(cells)} |"
    for key, field in _fields(model):
        yield from _nested(f"{name}.{key}", field)


def _nested(name: str, field: FieldInfo) -> Iterator[str]:
    model = _table_in(field)
    if model is not None:
        yield from _section(model, name, repeated=_is_repeated(field))


def _table_in(field: FieldInfo) -> type[BaseModel] | None:
    """The table that a field holds, alone or in a list; None for a plain value."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _is_repeated(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


def _type(field: FieldInfo) -> str:
    return ", ".join([_kind(field.annotation), *_bounds(field.metadata)])


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        return "list of texts" if inner is str else "list of tables"
    return _TYPES[annotation]


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        for name, sign in _BOUNDS.items():
            if (bound := getattr(item, name, None)) is not None:
                yield f"{sign} {bound:,}"
        if pattern := getattr(item, "pattern", None):
            yield f"like `{_cell(pattern)}`"


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{_cell(json.dumps(field.default))}`"


def _text(description: str | None) -> str:
    return _cell(" ".join((description or "").split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
