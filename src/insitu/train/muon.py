"""Muon on float32 masters: matrices take orthogonalised momentum, everything else AdamW."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from insitu.train.optimiser import AdamSpec, MasterAdamW

MOMENTUM = 0.95
_MATCH = 0.2
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


class MasterMuon(MasterAdamW):
    """AdamW's drop-in replacement for pre-training a small model on few tokens.

    Every matrix other than an embedding moves by `lr · 0.2 · sqrt(max(rows, columns))` times its
    Nesterov momentum with all singular values brought to about 1 (Jordan 2024, "Muon"; the factor
    gives AdamW's update size, so that one learning rate serves both: Liu et al. 2025, "Muon is
    Scalable for LLM Training", arXiv 2502.16982, section 2.2).
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        spec: AdamSpec,
        *,
        compute: torch.dtype = torch.bfloat16,
    ) -> None:
        """As `MasterAdamW`."""
        model = models[0]
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        shapes = [p.shape for p in model.parameters() if p.ndim >= 2 and id(p) not in embeddings]
        super().__init__(models, spec, compute=compute)
        sizes = [s.numel() for s in shapes]
        self._momentum = torch.zeros(sum(sizes))
        self._groups: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
        start = 0
        for shape, size in zip(shapes, sizes, strict=True):
            parts = (self.master, self.grads[0], self._momentum)
            w, g, m = (part[start : start + size].view(shape) for part in parts)
            self._groups.setdefault(shape, []).append((w, g, m))
            start += size
        # AdamW keeps only the second half: embeddings, norms, biases.
        self._adam.param_groups[0]["params"].clear()
        del self._adam.param_groups[0]

    def step(self, lr: float) -> float:
        """As `MasterAdamW.step`; Muon's part does not depend on the gradient's size."""
        for other in self.grads[1:]:
            self.grads[0].add_(other)
            other.zero_()
        if bool(torch.isfinite(torch.linalg.vector_norm(self.grads[0]))):
            for shape, group in self._groups.items():
                self._move(shape, group, lr)
        return super().step(lr)

    def _move(
        self, shape: torch.Size, group: list[tuple[Tensor, Tensor, Tensor]], lr: float
    ) -> None:
        with torch.no_grad():
            steps = []
            for _, grad, momentum in group:
                momentum.mul_(MOMENTUM).add_(grad)
                steps.append(grad.add(momentum, alpha=MOMENTUM))
            scale = lr * _MATCH * max(shape) ** 0.5
            for (weight, _, _), step in zip(group, orthogonal(torch.stack(steps)), strict=True):
                weight.mul_(1 - lr * self.spec.weight_decay).sub_(step, alpha=scale)

    def state(self) -> dict[str, Any]:
        """Everything that a later run needs to go on exactly."""
        return {**super().state(), "momentum": self._momentum}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        super().restore(state)
        self._momentum.copy_(state["momentum"])


def orthogonal(matrices: Tensor) -> Tensor:
    """`[n, rows, columns]` to the same with singular values near 1 (Newton-Schulz in bf16)."""
    a, b, c = _COEFFICIENTS
    x = matrices.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.transpose(1, 2) if tall else x
    return result.to(matrices.dtype)
