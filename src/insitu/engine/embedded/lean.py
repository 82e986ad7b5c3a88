"""A lean forward pass for the Llama family (Llama, Qwen2, Qwen3).

Small models are bound by the number of operations, not by arithmetic. So weights are fused once
when they are loaded (query, key and value; gate and up), the norms' weights are folded into the
matrices that follow them, the softmax scale into the queries, and the halves of each head are
interleaved so that the rotation is one complex product. Whatever the weights' dtype, norms,
rotation, attention and the residual stream are float32. The result equals the Hugging Face
model's up to rounding; a test holds both together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own convention
from torch import Tensor

from insitu.engine.embedded.attention import KVStore, Plan
from insitu.engine.embedded.linear import Linear
from insitu.engine.embedded.shape import Shape
from insitu.types import EngineError


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    head_weight: Tensor | None
    """[heads + kv_heads, head_dim]: norm weights of query and key heads, scale included."""


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """One version's weights in the layout of `LeanDecoder`."""

    embedding: Tensor
    layers: tuple[_Layer, ...]
    head: Linear


class LeanDecoder:
    """Implements `Decoder` for the Llama family."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.vocab = shape.vocab
        self.dtype = dtype
        self.device = device
        self._weights: LeanWeights | None = None
        self._frequencies = torch.empty(0, shape.head_dim // 2, dtype=torch.complex64)
        self._mean = torch.full((shape.hidden, 1), 1.0 / shape.hidden, device=device)
        self._head_mean = torch.full((shape.head_dim, 1), 1.0 / shape.head_dim, device=device)
        self._eps = torch.tensor([[shape.eps]], device=device)

    def prepare(self, tensors: Mapping[str, Tensor]) -> LeanWeights:
        """See `Decoder.prepare`."""
        return _Fuser(self.shape, tensors, self.dtype, self.device).weights()

    def use(self, loaded: LeanWeights) -> None:
        """See `Decoder.use`."""
        self._weights = loaded

    def forward(self, tokens: Tensor, plan: Plan, store: KVStore, wanted: Tensor | None) -> Tensor:
        """See `Decoder.forward`."""
        weights = self._weights
        if weights is None:
            raise EngineError("no weights are loaded")
        turns = self._turns(plan, store.context)
        x = F.embedding(tokens, weights.embedding).float()
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            attended = self._attention(index, layer, self._norm(x), turns, plan, store)
            if index == last and wanted is not None:
                # Behind its keys and values, nothing of another row is needed any more.
                x, attended = x[wanted], attended[wanted]
            x += layer.out(attended)
            gate, up = layer.gate_up(self._norm(x)).chunk(2, -1)
            x += layer.down(F.silu(gate).mul_(up))
        return weights.head(self._norm(x))

    def _attention(
        self, index: int, layer: _Layer, x: Tensor, turns: Tensor, plan: Plan, store: KVStore
    ) -> Tensor:
        s = self.shape
        turned = s.heads + s.kv_heads
        heads = layer.qkv(x).view(-1, turned + s.kv_heads, s.head_dim)
        qk = heads[:, :turned]
        if layer.head_weight is not None:
            squares = (qk * qk).view(-1, s.head_dim)
            scale = torch.addmm(self._eps, squares, self._head_mean).rsqrt_()
            qk = (qk * scale.view(-1, turned, 1)).mul_(layer.head_weight)
        pairs = torch.view_as_complex(qk.view(-1, turned, s.head_dim // 2, 2))
        qk = torch.view_as_real(pairs * turns).flatten(-2)
        return store.attend(index, plan, qk[:, : s.heads], qk[:, s.heads :], heads[:, turned:])

    def _norm(self, x: Tensor) -> Tensor:
        """Root-mean-square norm without weights, in fewer operations than torch's own."""
        return x * torch.addmm(self._eps, x * x, self._mean).rsqrt_()

    def _turns(self, plan: Plan, context: int) -> Tensor:
        """[rows, 1, head_dim / 2] complex64: the rotation of each row's position."""
        if len(self._frequencies) < context:
            half = self.shape.head_dim // 2
            # As transformers computes them: float32 powers, float32 angles.
            steps = torch.arange(half, dtype=torch.float32) * 2 / self.shape.head_dim
            angles = torch.arange(context)[:, None] * (1.0 / self.shape.rope_theta**steps)
            self._frequencies = torch.polar(torch.ones_like(angles), angles).to(self.device)
        return self._frequencies[plan.positions][:, None]


class _Fuser:
    """Builds `LeanWeights` from a Hugging Face state dict."""

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.tensors = tensors
        self.dtype = dtype
        self.device = device

    def weights(self) -> LeanWeights:
        s = self.shape
        embedding = self._get("model.embed_tokens.weight", s.vocab, s.hidden)
        tied = "lm_head.weight" not in self.tensors
        head = embedding if tied else self._get("lm_head.weight", s.vocab, s.hidden)
        norm = self._get("model.norm.weight", s.hidden)
        return LeanWeights(
            embedding=embedding.to(self.device, self.dtype),
            layers=tuple(self._layer(f"model.layers.{i}.") for i in range(s.layers)),
            head=self._linear(head * norm, None),
        )

    def _layer(self, at: str) -> _Layer:
        s = self.shape
        width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
        before = self._get(f"{at}input_layernorm.weight", s.hidden)
        after = self._get(f"{at}post_attention_layernorm.weight", s.hidden)
        inner = self._any(f"{at}mlp.gate_proj.weight").shape[0]
        gate_up = [self._get(f"{at}mlp.{n}_proj.weight", inner, s.hidden) for n in ("gate", "up")]
        qkv, biases = [], []
        for name, rows in (("q", width), ("k", kv_width), ("v", kv_width)):
            weight = self._get(f"{at}self_attn.{name}_proj.weight", rows, s.hidden)
            bias = self.tensors.get(f"{at}self_attn.{name}_proj.bias")
            bias = torch.zeros(rows) if bias is None else bias.float()
            scale = s.head_dim**-0.5 if name == "q" and not s.head_norm else 1.0
            turned = name != "v"
            qkv.append(self._interleave(weight * scale) if turned else weight)
            biases.append(self._interleave(bias * scale) if turned else bias)
        bias = torch.cat(biases) if any(b.any() for b in biases) else None
        return _Layer(
            qkv=self._linear(torch.cat(qkv) * before, bias),
            out=self._linear(
                self._get(f"{at}self_attn.o_proj.weight", s.hidden, width),
                self.tensors.get(f"{at}self_attn.o_proj.bias"),
            ),
            gate_up=self._linear(torch.cat(gate_up) * after, None),
            down=self._linear(self._get(f"{at}mlp.down_proj.weight", s.hidden, inner), None),
            head_weight=self._head_weight(at) if s.head_norm else None,
        )

    def _head_weight(self, at: str) -> Tensor:
        s = self.shape
        q = self._get(f"{at}self_attn.q_norm.weight", s.head_dim) * s.head_dim**-0.5
        k = self._get(f"{at}self_attn.k_norm.weight", s.head_dim)
        both = [self._interleave(q).expand(s.heads, -1), self._interleave(k).expand(s.kv_heads, -1)]
        return torch.cat(both).to(self.device)

    def _interleave(self, rows: Tensor) -> Tensor:
        """Order each head's rows 0, d/2, 1, d/2 + 1, … so that a rotated pair is adjacent.

        Scores are sums over a head's dimensions, so their order does not matter.
        """
        half = self.shape.head_dim // 2
        return rows.view(-1, 2, half, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return Linear(
            weight.to(self.device, self.dtype),
            None if bias is None else bias.to(self.device, self.dtype),
        )

    def _any(self, name: str) -> Tensor:
        try:
            return self.tensors[name].float()
        except KeyError:
            raise EngineError(f"the weights lack {name}") from None

    def _get(self, name: str, *shape: int) -> Tensor:
        tensor = self._any(name)
        if tensor.shape != shape:
            raise EngineError(f"{name} is {tuple(tensor.shape)}, expected {shape}")
        return tensor
