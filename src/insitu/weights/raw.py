"""safetensors files as plain bytes: read, written and rounded to bf16 without torch.

The format: 8 bytes little-endian header length, a JSON header of dtype, shape and offsets by
tensor, then the tensors' bytes (huggingface.co/docs/safetensors).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from insitu.types import CorruptError, UsageError

_MAX_HEADER = 100_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBytes:
    """One tensor as bytes.

    Example: `TensorBytes(dtype="BF16", shape=(4096, 256), data=b"…")`.
    """

    dtype: str
    """As safetensors names it: `BF16`, `F16`, `F32`."""
    shape: tuple[int, ...]
    data: bytes | memoryview
    """Little-endian, row-major."""


def encode_header(tensors: Mapping[str, TensorBytes]) -> bytes:
    """What comes before the tensors' bytes, which follow in the mapping's order."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, t in tensors.items():
        end = at + len(t.data)
        table[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, tensors: Mapping[str, TensorBytes]) -> None:
    """Write a safetensors file through to the disk."""
    with path.open("wb") as f:
        f.write(encode_header(tensors))
        for t in tensors.values():
            f.write(t.data)
        f.flush()
        os.fsync(f.fileno())


def read_tensors(path: Path) -> dict[str, TensorBytes]:
    """All tensors of a safetensors file.

    Raises:
        CorruptError: the file is missing, cut short or no safetensors file.
    """
    try:
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        if not 0 < length <= min(len(data) - 8, _MAX_HEADER):
            raise ValueError("no header")
        table = json.loads(data[8 : 8 + length])
        table.pop("__metadata__", None)
        body = memoryview(data)[8 + length :]
        if max((int(e["data_offsets"][1]) for e in table.values()), default=0) != len(body):
            raise ValueError("cut short")
        return {
            name: TensorBytes(
                dtype=str(entry["dtype"]),
                shape=tuple(entry["shape"]),
                data=body[slice(*entry["data_offsets"])],
            )
            for name, entry in table.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptError(f"{path}: damaged weights: {e}", remedy=COPY_AGAIN) from e


COPY_AGAIN = "copy the model's folder again"


def read_model(folder: Path) -> dict[str, TensorBytes]:
    """All tensors of a Hugging Face model folder, of one file or of the index's shards.

    Raises:
        UsageError, CorruptError: see `weight_files`; also where a file is damaged.
    """
    tensors: dict[str, TensorBytes] = {}
    for path in weight_files(folder):
        tensors |= read_tensors(path)
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face model folder, which are there; none is read.

    Raises:
        UsageError: there is no config.json or no safetensors file.
        CorruptError: the configuration or the index is damaged, or a shard is missing.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise UsageError(f"{folder}: no model (no config.json)", remedy="give a model's folder")
    _read_table(config)
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not (folder / "model.safetensors").is_file():
            raise UsageError(f"{folder}: no model.safetensors", remedy="give a model with weights")
        return [folder / "model.safetensors"]
    shards = _read_table(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CorruptError(f"{index}: damaged: no weight_map", remedy=COPY_AGAIN)
    files = [folder / str(name) for name in sorted(set(shards.values()))]
    for path in files:
        if not path.is_file():
            raise CorruptError(f"{path}: missing shard of the model", remedy=COPY_AGAIN)
    return files


def _read_table(path: Path) -> dict[str, object]:
    try:
        table = json.loads(path.read_text())
        if not isinstance(table, dict):
            raise ValueError("not a table")
    except (OSError, ValueError) as e:
        raise CorruptError(f"{path}: damaged: {e}", remedy=COPY_AGAIN) from e
    return table


def to_bf16(tensor: TensorBytes) -> TensorBytes:
    """The tensor in bf16, rounded to nearest, ties to even, as torch rounds.

    Raises:
        UsageError: it is neither float32 nor float16 nor bf16.
    """
    if tensor.dtype == "BF16":
        return tensor
    if tensor.dtype not in ("F32", "F16"):
        raise UsageError(f"weights of type {tensor.dtype} cannot be published", remedy="use bf16")
    stored = np.frombuffer(tensor.data, dtype="<f4" if tensor.dtype == "F32" else "<f2")
    bits = stored.astype("<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # A NaN's payload could round up to infinity: keep it a NaN.
    rounded = np.where(np.isnan(stored), 0x7FC0, rounded)
    return TensorBytes(dtype="BF16", shape=tensor.shape, data=rounded.astype("<u2").tobytes())
