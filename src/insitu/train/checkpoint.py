"""Checkpoints: folders that are whole or absent, proven before they are used."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from insitu.kit.atomic import atomic_folder, write_atomic
from insitu.kit.digest import digest_file
from insitu.kit.log import get_log
from insitu.types import CorruptError

_NAME = re.compile(r"step-(\d{8})")
_log = get_log("train")


def write_checkpoint(root: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `state` (tensors and plain values) as `root/step-NNNNNNNN`; keep the newest `keep`.

    Raises:
        OSError: the disk is full; the older checkpoints are untouched.
    """
    folder = root / f"step-{step:08d}"
    with atomic_folder(folder) as temporary:
        with (temporary / "state.pt").open("wb") as f:
            target = _Target(f)
            try:
                torch.save(state, cast("IO[bytes]", target))
            except RuntimeError:
                if target.error is not None:
                    raise target.error from None
                raise
            f.flush()
            os.fsync(f.fileno())
        manifest = {"step": step, "state.pt": digest_file(temporary / "state.pt")}
        write_atomic(temporary / "manifest.json", json.dumps(manifest))
    for old in _found(root)[:-keep]:
        shutil.rmtree(old)
    for part in root.glob(".step-*.part"):
        shutil.rmtree(part, ignore_errors=True)
    return folder


class _Target:
    """A file that remembers why it could not be written: torch tells of a lost position only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as e:
            self.error = e
            raise

    def flush(self) -> None:
        self._file.flush()


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The state in one checkpoint folder.

    Raises:
        CorruptError: a file is missing or its digest is not the manifest's.
    """
    path = folder / "state.pt"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        proven = manifest["state.pt"] == digest_file(path)
    except (OSError, ValueError, KeyError) as e:
        raise CorruptError(f"{folder}: no whole checkpoint: {e}", remedy=_REMEDY) from e
    if not proven:
        raise CorruptError(f"{path}: damaged checkpoint", remedy=_REMEDY)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


_REMEDY = "delete the folder to go on from the one before it"


def newest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint under `root` that is whole; damaged newer ones are passed over."""
    for folder in reversed(_found(root)):
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            if manifest["state.pt"] == digest_file(folder / "state.pt"):
                return folder
        except (OSError, ValueError, KeyError):
            pass
        _log.warning("%s is damaged; the checkpoint before it is used", folder)
    return None


def _found(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if p.is_dir() and _NAME.fullmatch(p.name))
