"""The base of every section of the config tree."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a recipe. The string under each field is its description in `config show`."""

    model_config = ConfigDict(
        # Strict: `steps = true` and `steps = "8"` are errors, not 1 and 8.
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
