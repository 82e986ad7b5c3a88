"""`[eval]`: how policies are compared on held-out tasks."""

from pydantic import Field

from insitu.config.section import Section


class EvalConfig(Section):
    """One evaluation."""

    attempts: int = Field(default=1, ge=1)
    """Episodes per task; pass@1 is the mean over them."""
    compare: str = ""
    """Folder of a second model; both are evaluated and compared by a paired test."""
    greedy: bool = False
    """Evaluate with temperature 0 as well, one attempt per task."""
    temperature: float = Field(default=1.0, ge=0)
    """Of the sampled attempts."""
    in_flight: int = Field(default=0, ge=0)
    """Episodes at the same time; 0: as in [rollout]."""
    limit: int = Field(default=0, ge=0)
    """Evaluate on the first so many held-out tasks of the set's balanced order; 0: all."""
    baselines: bool = True
    """Report the baselines without a model beside the policies."""
    baseline_tries: int = Field(default=5, ge=1)
    """Test runs that a baseline may use per task: as many as the product allows."""
