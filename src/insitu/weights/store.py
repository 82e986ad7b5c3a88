"""The weight store: a folder of policy versions, each whole and proven or not there.

    weights/v000000/   model.safetensors, config.json, tokenizer files, manifest.json
    weights/v000001/   …

Every version's folder loads as a Hugging Face model. A version exists when its folder has its
final name and a manifest; whatever a kill leaves besides is passed over, and removed by the
next publication. One process publishes; any number read.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from insitu.kit.atomic import atomic_folder, write_atomic
from insitu.kit.digest import digest_file
from insitu.types import CorruptError, PolicyVersion, UsageError
from insitu.weights.raw import TensorBytes, encode_header, read_model, to_bf16, write_tensors

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
_NAME = re.compile(r"v(\d{6,})")
_NOT_SIDE = (".safetensors", ".safetensors.index.json", ".bin", ".gguf", ".pt", MANIFEST)
_CONFIG_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class WeightStore:
    """A chain of policy versions in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`; the first publication makes it."""
        self.folder = folder.absolute()

    def publish(
        self,
        tensors: Mapping[str, TensorBytes],
        *,
        number: int,
        step: int,
        side_files: Path | None = None,
    ) -> PolicyVersion:
        """Write version `number`, whole or not at all.

        `side_files` is a model folder whose config and tokenizer files go along; version 0
        needs it, later versions take version 0's. A version that is there with the same
        weights is returned as it is. With other weights (a run that went back to a checkpoint)
        it is replaced, and the versions after it, which no longer follow, are removed first.

        Raises:
            UsageError: version 0 without `side_files`, or a later version without version 0.
            OSError: the disk is full; the version is not there.
        """
        side = side_files if side_files is not None else self._path(0)
        if not (side / "config.json").is_file():
            raise UsageError(f"{side}: no config.json to publish with", remedy="publish version 0")
        self._sweep()
        if self._holds(number, tensors):
            return self.get(number)
        for later in self.numbers():
            if later > number:
                shutil.rmtree(self._path(later))
        with atomic_folder(self._path(number)) as temporary:
            write_tensors(temporary / WEIGHTS, tensors)
            _copy_side_files(side, temporary, {t.dtype for t in tensors.values()})
            manifest = {"number": number, "step": step, "digest": digest_file(temporary / WEIGHTS)}
            write_atomic(temporary / MANIFEST, json.dumps(manifest))
        return self.get(number)

    def adopt(self, model: Path, *, number: int = 0) -> PolicyVersion:
        """Make the Hugging Face model in a folder version `number`, its weights rounded to bf16.

        Raises:
            UsageError: the folder holds no model, or weights of another kind than float.
            CorruptError: a shard is missing or damaged.
            OSError: the disk is full; the version is not there.
        """
        tensors = {name: to_bf16(t) for name, t in read_model(model).items()}
        return self.publish(tensors, number=number, step=0, side_files=model)

    @property
    def is_empty(self) -> bool:
        """Whether there is no version."""
        return not self.numbers()

    def context_of(self, number: int) -> int:
        """Longest sequence in tokens that version `number` was made for.

        Raises:
            UsageError, CorruptError: see `get`; also where its config.json does not say it.
        """
        path = Path(self.get(number).path) / "config.json"
        try:
            return int(json.loads(path.read_text())["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CorruptError(f"{path}: no max_position_embeddings", remedy=_remedy(number)) from e

    def numbers(self) -> list[int]:
        """The versions that are there, oldest first."""
        if not self.folder.is_dir():
            return []
        found = ((_NAME.fullmatch(p.name), p) for p in self.folder.iterdir())
        return sorted(int(m[1]) for m, p in found if m and (p / MANIFEST).is_file())

    def latest(self) -> PolicyVersion | None:
        """The newest version; None in an empty store.

        Raises:
            CorruptError: see `get`.
        """
        numbers = self.numbers()
        return self.get(numbers[-1]) if numbers else None

    def get(self, number: int) -> PolicyVersion:
        """Version `number`, by its manifest (`verify` proves the weights too).

        Raises:
            UsageError: there is no such version.
            CorruptError: its manifest or its weights file is missing or unreadable.
        """
        folder = self._path(number)
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such version", remedy="use one of `numbers()`")
        path = folder / MANIFEST
        try:
            manifest = json.loads(path.read_text())
            digest, step = str(manifest["digest"]), int(manifest["step"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CorruptError(f"{path}: damaged manifest: {e}", remedy=_remedy(number)) from e
        if not (folder / WEIGHTS).is_file():
            raise CorruptError(f"{folder / WEIGHTS}: missing", remedy=_remedy(number))
        return PolicyVersion(number=number, digest=digest, path=str(folder), step=step)

    def verify(self, number: int) -> PolicyVersion:
        """Version `number`, its weights proven equal to what was published.

        Raises:
            UsageError: there is no such version.
            CorruptError: a file is missing, or the weights' digest is not the manifest's.
        """
        version = self.get(number)
        path = Path(version.path) / WEIGHTS
        if digest_file(path) != version.digest:
            raise CorruptError(f"{path}: not the weights published", remedy=_remedy(number))
        return version

    def prune(self, *, keep: int) -> list[int]:
        """Remove all but the newest `keep` versions, never version 0 nor the latest.

        Returns:
            The versions removed.
        """
        numbers = self.numbers()
        removed = [n for n in numbers[: -max(1, keep)] if n != 0]
        for number in removed:
            shutil.rmtree(self._path(number))
        return removed

    def _path(self, number: int) -> Path:
        return self.folder / f"v{number:06d}"

    def _sweep(self) -> None:
        """Remove what a killed publication left."""
        for part in self.folder.glob(".v*.part"):
            shutil.rmtree(part, ignore_errors=True)

    def _holds(self, number: int, tensors: Mapping[str, TensorBytes]) -> bool:
        path, header = self._path(number), encode_header(tensors)
        if not (path / MANIFEST).is_file() or not (path / WEIGHTS).is_file():
            return False
        with (path / WEIGHTS).open("rb") as f:
            same = f.read(len(header)) == header
            return same and all(f.read(len(t.data)) == t.data for t in tensors.values())


def _remedy(number: int) -> str:
    return "publish the base again" if number == 0 else "remove the folder and resume the run"


def _copy_side_files(source: Path, target: Path, dtypes: set[str]) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(_NOT_SIDE) and path.name != "config.json":
            _link_or_copy(path, target / path.name)
    config = json.loads((source / "config.json").read_text())
    if len(dtypes) == 1:
        config["dtype"] = _CONFIG_DTYPES[next(iter(dtypes))]
        config.pop("torch_dtype", None)
    write_atomic(target / "config.json", json.dumps(config, indent=2, sort_keys=True))


def _link_or_copy(source: Path, target: Path) -> None:
    """Link files of the store, which never change; copy others, which may."""
    if source.parent.parent == target.parent.parent:
        try:
            os.link(source, target)
        except OSError:  # A file system without links.
            pass
        else:
            return
    shutil.copy2(source, target)
