"""Weights read from a policy's folder and proven before anything is changed."""

import hashlib
import json
from pathlib import Path

import safetensors.torch
from torch import Tensor

from insitu.kit.digest import digest_file
from insitu.types import EngineError, PolicyVersion

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def shards(folder: Path) -> list[Path]:
    """The folder's safetensors files: the single one, or those its index names, sorted by name.

    Raises:
        EngineError: there is neither, or a file the index names is missing.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise EngineError(f"{folder}: neither {SINGLE} nor {INDEX}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as e:
        raise EngineError(f"{index}: not a safetensors index ({e!r})") from e
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise EngineError(
            f"{folder}: shard {missing[0]} is missing ({len(missing)} of {len(names)})"
        )
    return [folder / name for name in names]


def digest_folder(folder: Path) -> str:
    """Hex BLAKE2b-256 of the weights: of the one file, or of the shards' bytes in name order.

    Raises:
        EngineError: a shard is missing.
    """
    files = shards(folder)
    if len(files) == 1:
        return digest_file(files[0])
    h = hashlib.blake2b(digest_size=32)
    for file in files:
        h.update(file.read_bytes())
    return h.hexdigest()


def read_proven(policy: PolicyVersion) -> dict[str, Tensor]:
    """All tensors of `policy`, by name, on the CPU; the bytes parsed are the bytes hashed.

    Raises:
        EngineError: a file is missing or unreadable, or the digest differs.
    """
    folder = Path(policy.path)
    tensors: dict[str, Tensor] = {}
    h = hashlib.blake2b(digest_size=32)
    try:
        for file in shards(folder):
            raw = file.read_bytes()
            h.update(raw)
            tensors.update(safetensors.torch.load(raw))
    except (OSError, ValueError, safetensors.SafetensorError) as e:
        raise EngineError(f"{folder}: weights cannot be read: {e}") from e
    if h.hexdigest() != policy.digest:
        raise EngineError(
            f"{folder}: digest of version {policy.number} is {h.hexdigest()[:16]}…, "
            f"expected {policy.digest[:16]}…: not served"
        )
    return tensors
