"""Calls as exact tokens, and the segments stitched from them."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to sample. The log-probabilities recorded are those of the distribution sampled from.

    Example: `Sampling(temperature=1.0, max_tokens=128, seed=7)`.
    """

    temperature: float = 1.0
    """0 is greedy (then the recorded log-probabilities are the untempered model's)."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    max_tokens: int = 256
    """Tokens to sample at most; at least 1."""
    seed: int | None = None
    """With a seed a token depends only on it, its position and the logits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRequest:
    """What an engine is asked for: tokens in.

    Example: `TokenRequest(request_id="c1", session="ep-12", prompt_ids=(1, 2, 3),
    sampling=Sampling(), stop_ids=(0,))`.
    """

    request_id: str
    session: str
    """Affinity key: requests of one session extend each other and share a prefix cache."""
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()
    """Sampling ends with the first of these; it is part of the result's `token_ids`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenResult:
    """What an engine gives back: exact tokens out. The three tuples have one entry per token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log of the probability under the distribution really sampled from."""
    versions: tuple[int, ...]
    """Policy version number that sampled each token."""
    finish: FinishReason
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were reused."""
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One model request of the product, as the gateway recorded it."""

    call_id: str
    episode_id: str
    index: int
    """0-based position among the episode's calls, in order of arrival."""
    prompt_ids: tuple[int, ...]
    result: TokenResult
    request: str
    """The product's request body, verbatim JSON."""
    response: str
    """The body that was sent back, verbatim JSON."""
    extends: str | None = None
    """`call_id` of the call whose prompt and tokens this prompt begins with, if any."""
    break_cause: str | None = None
    """Why this call starts a new segment although another came before it."""
    started_at: float = 0.0
    """Unix seconds."""
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A train-ready token sequence stitched from calls that extend each other.

    The four tuples have one entry per token. Example: a prompt of two tokens, three sampled,
    a tool result of one, one sampled: `trainable=(False, False, True, True, True, False, True)`.
    """

    token_ids: tuple[int, ...]
    trainable: tuple[bool, ...]
    """True where the policy sampled the token."""
    logprobs: tuple[float, ...]
    """0.0 where not trainable."""
    versions: tuple[int, ...]
    """-1 where not trainable."""
    call_ids: tuple[str, ...] = field(default=())

    @property
    def sampled(self) -> int:
        """Number of trainable tokens."""
        return sum(self.trainable)

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a token here; -1 without sampled tokens."""
        return min((v for v in self.versions if v >= 0), default=-1)
