"""AdamW on float32 masters of bf16 weights, in two flat buffers; learning-rate schedules."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamSpec:
    """AdamW's constants. Weight decay holds for matrices other than embeddings."""

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest L2 norm of the whole gradient; 0: no clipping."""


class MasterAdamW:
    """Float32 masters and gradients for a model whose forward pass runs in bf16.

    The parameters of the model and of its copies become views of one bf16 buffer. Gradients of
    every backward pass are added up in float32, one buffer per copy, so that accumulation does
    not round; `step` clips, updates the masters and rounds them into the model.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        spec: AdamSpec,
        *,
        compute: torch.dtype = torch.bfloat16,
    ) -> None:
        """Take over the parameters of `models`, which are equal.

        From here on they hold bf16 values in the dtype `compute`, so that with float32 the same
        published weights are used, with finer arithmetic.
        """
        self.spec = spec
        model = models[0]
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        decays = [p.ndim >= 2 and id(p) not in embeddings for p in model.parameters()]
        ordered = [_decayed_first(m, decays) for m in models]
        sizes = [p.numel() for p in ordered[0]]
        split = sum(p.numel() for p, d in zip(model.parameters(), decays, strict=True) if d)
        self.master = torch.cat([p.detach().float().reshape(-1) for p in ordered[0]])
        self.weights = self.master.to(torch.bfloat16).to(compute)
        self.grads = [torch.zeros_like(self.master) for _ in models]
        for params, grad in zip(ordered, self.grads, strict=True):
            for p, w, g in zip(params, _cut(self.weights, sizes), _cut(grad, sizes), strict=True):
                p.data = w.view(p.shape)
                hook = _adder(g.view(p.shape))
                p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        halves = [nn.Parameter(self.master[:split]), nn.Parameter(self.master[split:])]
        halves[0].grad, halves[1].grad = self.grads[0][:split], self.grads[0][split:]
        self._adam = torch.optim.AdamW(
            [
                {"params": halves[:1], "weight_decay": spec.weight_decay},
                {"params": halves[1:], "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            fused=True,
        )

    def step(self, lr: float) -> float:
        """Update from the gradients added up since the last step, and clear them.

        Returns:
            The gradient's L2 norm before clipping. Where it is not finite, nothing is updated.
        """
        grad = self.grads[0]
        for other in self.grads[1:]:
            grad.add_(other)
        norm = float(torch.linalg.vector_norm(grad))
        if math.isfinite(norm):
            if 0 < self.spec.clip < norm:
                grad.mul_(self.spec.clip / norm)
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self.weights.copy_(self.master.to(torch.bfloat16))
        self.clear()
        return norm

    def clear(self) -> None:
        """Forget the gradients added up since the last step."""
        for grad in self.grads:
            grad.zero_()

    def state(self) -> dict[str, Any]:
        """Everything that a later run needs to go on exactly."""
        return {"master": self.master, "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        with torch.no_grad():
            self.master.copy_(state["master"])
            self.weights.copy_(self.master.to(torch.bfloat16))
        self._adam.load_state_dict(state["adam"])


def _decayed_first(model: nn.Module, decays: list[bool]) -> list[nn.Parameter]:
    pairs = list(zip(model.parameters(), decays, strict=True))
    return [p for p, d in pairs if d] + [p for p, d in pairs if not d]


def _cut(flat: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    return torch.split(flat, sizes)


def _adder(total: Tensor) -> Callable[[Tensor], None]:
    def add(p: Tensor) -> None:
        if p.grad is not None:
            total.add_(p.grad)
            p.grad = None

    return add


def wsd(progress: float, *, warmup: float, decay: float, floor: float) -> float:
    """Warm-up, stable, linear decay: the factor of the peak learning rate.

    `progress`, `warmup`, `decay` are shares of the run in 0..1; `floor` is the last factor.
    """
    if progress < warmup:
        return progress / warmup
    if progress <= 1 - decay:
        return 1.0
    return floor + (1 - floor) * max(0.0, 1 - progress) / decay


def cosine(progress: float, *, warmup: float, decay: float, floor: float) -> float:
    """Warm-up, then half a cosine down to `floor` over the rest; `decay` is not used."""
    if progress < warmup:
        return progress / warmup
    turned = min(1.0, (progress - warmup) / (1 - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * turned))


SCHEDULES = {"wsd": wsd, "cosine": cosine}
