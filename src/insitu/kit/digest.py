"""BLAKE2b digests of bytes and files."""

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def digest_bytes(*parts: bytes) -> str:
    """Hex BLAKE2b-256 over `parts`, each preceded by its length so that boundaries count."""
    h = hashlib.blake2b(digest_size=32)
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.hexdigest()


def digest_file(path: Path) -> str:
    """Hex BLAKE2b-256 of a file's bytes."""
    h = hashlib.blake2b(digest_size=32)
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            h.update(chunk)
    return h.hexdigest()
