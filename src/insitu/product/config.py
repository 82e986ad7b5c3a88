"""`product.toml`: how a product's agent is started, and what differs from production on purpose."""

import difflib
import string
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from insitu.types import ConfigError, Limits

ToolKind = Literal["edit", "test", "undo", "finish", "read"]

PLACEHOLDERS = frozenset({"python", "mount", "packages", "issue", "workdir"})
"""What `command`, `prepare` and `env.set` may name in braces."""

AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProductEnv(_Table):
    """Names of the environment variables the product reads, and fixed ones it needs."""

    base_url: str = "OPENAI_BASE_URL"
    key: str = "OPENAI_API_KEY"
    model: str = "OPENAI_MODEL"
    set: dict[str, str] = {}
    """Further variables; values may use the placeholders."""


class ProductTools(_Table):
    """What the product calls the tools that insitu has signals for."""

    edit: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


class ProductLimits(_Table):
    """Limits of the agent's sandbox; see `insitu.types.Limits`."""

    memory_mb: Annotated[int, Field(ge=32)] = 512
    pids: Annotated[int, Field(ge=2)] = 64
    cpus: Annotated[float, Field(gt=0)] = 1.0
    open_files: Annotated[int, Field(ge=16)] = 256
    disk_mb: Annotated[int, Field(ge=1)] = 64
    output_bytes: Annotated[int, Field(ge=1024)] = 262_144


class Fidelity(_Table):
    """Differences between the training environment and production that are intended."""

    intended: tuple[str, ...] = ()


class Product(_Table):
    """One product, as its `product.toml` describes it; `read_product` reads it.

    Placeholders in `command`, `prepare` and `env.set`: `{python}` the interpreter in the
    sandbox (on the host for `prepare`), `{mount}`, `{issue}`, `{workdir}`, `{packages}` the
    folder with the task environment's packages.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    dialect: str = "openai-chat"
    """Name of the model API it speaks, as the gateway lists them."""
    command: tuple[str, ...] = Field(min_length=1)
    source: str = "."
    """Folder of the product, relative to `product.toml`; shown read-only at `mount`."""
    mount: AbsolutePath
    prepare: tuple[str, ...] = ()
    """Run once on the host in `source` before the first episode, e.g. a compiler."""
    issue: AbsolutePath = "/home/dev/ISSUE.md"
    """Where the task's instruction is shown, read-only."""
    workdir: str = Field("task", pattern=r"^(task|/.*)$")
    """`task`: the folder the task names; or an absolute path inside the sandbox."""
    port: int = Field(8080, ge=1, le=65535)
    """Port on 127.0.0.1 at which the model API appears inside the sandbox."""
    timeout_s: float = Field(600.0, gt=0)
    """Wall-clock limit of one episode; a task's own limit holds where it is shorter."""
    fault_exit_codes: tuple[int, ...] = ()
    """Exit codes that mean the product was set up wrongly: a fault, not an outcome."""
    env: ProductEnv = ProductEnv()
    tools: ProductTools = ProductTools()
    limits: ProductLimits = ProductLimits()
    fidelity: Fidelity = Fidelity()
    folder: Path = Field(Path(), exclude=True)
    """Where `product.toml` lies; set by `read_product`, not a key of the file."""

    @field_validator("command", "prepare")
    @classmethod
    def _known_placeholders(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        for part in argv:
            check_placeholders(part)
        return argv

    @field_validator("env")
    @classmethod
    def _known_placeholders_in_env(cls, env: ProductEnv) -> ProductEnv:
        for value in env.set.values():
            check_placeholders(value)
        return env

    @property
    def source_folder(self) -> Path:
        """The product's folder on the host."""
        return (self.folder / self.source).resolve()

    def kind_of(self, tool: str) -> ToolKind | None:
        """What kind of tool the product's `tool` is, if it is one that signals look at."""
        kinds: tuple[ToolKind, ...] = ("edit", "test", "undo", "finish", "read")
        return next((kind for kind in kinds if tool in getattr(self.tools, kind)), None)

    def sandbox_limits(self) -> Limits:
        """The limits as the sandbox takes them."""
        return Limits(**self.limits.model_dump())


def check_placeholders(text: str) -> None:
    """Refuse a text that names a placeholder that does not exist.

    Raises:
        ValueError: an unknown name in braces, or a brace without its partner.
    """
    for _, name, _, _ in string.Formatter().parse(text):
        if name is not None and name not in PLACEHOLDERS:
            known = ", ".join(sorted(PLACEHOLDERS))
            raise ValueError(f"unknown placeholder {{{name}}} (known: {known})")


def read_product(path: Path) -> Product:
    """Read a `product.toml`, or the one in the folder `path`.

    Raises:
        ConfigError: no such file, not TOML, an unknown key or a wrong value.
    """
    file = path / "product.toml" if path.is_dir() else path
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        remedy = "give the path of a product.toml or of its folder"
        raise ConfigError(f"{file}: {e.strerror}", remedy=remedy) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{file}: not TOML: {e}", remedy="correct the file") from e
    if "folder" in data:
        raise ConfigError(f"{file}: unknown key `folder`", remedy="remove it")
    try:
        product = Product.model_validate({**data, "folder": file.parent.resolve()})
    except ValidationError as e:
        raise _config_error(file, e) from e
    if not product.source_folder.is_dir():
        problem = f"{file}: `source` = {product.source!r} is no folder"
        raise ConfigError(problem, remedy="name the product's folder, relative to the file")
    return product


def _config_error(file: Path, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys(first["loc"][:-1]), 1, 0.5)
        remedy = f"did you mean `{near[0]}`?" if near else "remove it"
        return ConfigError(f"{file}: unknown key `{key}`", remedy=remedy.rstrip("?"))
    given = "" if first["type"] == "missing" else f" (given: {first['input']!r})"
    problem = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{file}: `{key}`: {problem}{given}", remedy="correct the value")


def _keys(table: tuple[Any, ...]) -> list[str]:
    """The keys that the file may have in a table."""
    model: type[BaseModel] = Product
    for part in table:
        kind = model.model_fields[str(part)].annotation
        assert isinstance(kind, type)
        model = kind
    return [name for name in model.model_fields if name != "folder"]
