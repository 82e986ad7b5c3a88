"""The dialects by route: a literal table, each imported when it is used."""

from functools import cache
from importlib import import_module
from typing import Final, cast

from insitu.gateway.dialects.base import Dialect

DIALECTS: Final[dict[str, str]] = {
    "/v1/chat/completions": "insitu.gateway.dialects.chat:ChatDialect",
}
"""Route → `module:Class`."""

ROUTES: Final[dict[str, str]] = {"openai-chat": "/v1/chat/completions"}
"""What `product.toml` calls a dialect → its route."""


@cache
def dialect_at(route: str) -> Dialect:
    """The dialect that answers on `route`.

    Raises:
        KeyError: no dialect answers there.
    """
    module, name = DIALECTS[route].split(":")
    return cast(Dialect, getattr(import_module(module), name)())
