"""A matrix product with a weight that is packed once."""

import torch
from torch import Tensor

PACKED_FROM = 4
"""Rows from which oneDNN's packed product is faster than the plain one (measured)."""
_PACKED_UP_TO = 64
"""Rows the packing is laid out for."""


def _pack(weight: Tensor) -> Tensor | None:
    """`weight` in oneDNN's blocked layout, where this build of torch offers it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_UP_TO)
        probe = torch.zeros(PACKED_FROM, weight.shape[1], dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return None  # the plain product does the same, somewhat slower
    return packed


class Linear:
    """`x @ weight.T + bias` with float32 in and out, computed in the weight's dtype."""

    __slots__ = ("bias", "dtype", "packed", "turned")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` is [out, in]; it is copied into the layouts that are fastest."""
        self.dtype = weight.dtype
        self.bias = bias
        self.packed = _pack(weight)
        self.turned = weight.t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out] float32 of `x` [rows, in] float32."""
        if self.dtype != torch.float32:
            x = x.to(self.dtype)
        few = x.shape[0] < PACKED_FROM and self.dtype == torch.float32
        if self.packed is None or few:
            out = torch.mm(x, self.turned)
            if self.bias is not None:
                out += self.bias
        else:
            out = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out.float()
