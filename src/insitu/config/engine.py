"""`[engine]`: what serves the policy during rollouts and evaluations."""

from typing import Literal

from pydantic import Field

from insitu.config.section import Section


class EngineConfig(Section):
    """The inference engine."""

    kind: Literal["embedded"] = "embedded"
    """Which engine; the embedded one is the only one so far."""
    slots: int = Field(default=64, ge=1)
    """Sequences decoded at the same time; more requests wait."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the arithmetic; `auto`: bfloat16 where the device multiplies it (an
    accelerator, a CPU with AVX512-BF16), else float32."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; `auto`: an accelerator where there is one."""
    threads: int = Field(default=1, ge=0)
    """CPU cores it uses; 0: all."""
    deterministic: bool = False
    """Same request, same tokens, whatever else is in flight; slower."""
    reuse_across_versions: bool = True
    """Keep keys and values computed by older weights when new weights arrive."""
