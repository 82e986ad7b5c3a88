import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from insitu.kit.digest import digest_file
from insitu.types import CorruptError, UsageError
from insitu.weights.store import TensorBytes, WeightStore


def tensors(seed: int) -> dict[str, TensorBytes]:
    rng = np.random.default_rng(seed)
    return {
        name: TensorBytes(
            dtype="F32", shape=shape, data=rng.random(shape, dtype=np.float32).tobytes()
        )
        for name, shape in (("a.weight", (3, 5)), ("b", (7,)))
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3", "torch_dtype": "bfloat16"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"not taken along")
    return folder


@pytest.fixture
def store(tmp_path: Path, base: Path) -> WeightStore:
    store = WeightStore(tmp_path / "weights")
    store.publish(tensors(0), number=0, step=0, side_files=base)
    return store


def test_a_version_is_a_model_folder_with_the_same_bytes(store: WeightStore):
    version = store.publish(tensors(1), number=1, step=1)
    folder = Path(version.path)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert version.digest == digest_file(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", framework="numpy") as f:
        assert f.metadata() == {"format": "pt"}
        for name, t in tensors(1).items():
            assert f.get_tensor(name).tobytes() == t.data


def test_latest_get_and_verify_agree(store: WeightStore):
    first, second = store.latest(), store.publish(tensors(1), number=1, step=4)
    assert first is not None
    assert first.number == 0
    assert store.latest() == store.get(1) == store.verify(1) == second
    assert second.step == 4
    assert WeightStore(store.folder).latest() == second


def test_an_empty_store_has_no_latest(tmp_path: Path):
    assert WeightStore(tmp_path / "none").latest() is None


def test_a_later_version_needs_the_base(tmp_path: Path):
    with pytest.raises(UsageError, match="version 0"):
        WeightStore(tmp_path / "w").publish(tensors(1), number=1, step=1)


def test_publishing_the_same_again_changes_nothing(store: WeightStore):
    version = store.publish(tensors(1), number=1, step=1)
    store.publish(tensors(2), number=2, step=2)
    before = (Path(version.path) / "manifest.json").stat()
    assert store.publish(tensors(1), number=1, step=1) == version
    assert (Path(version.path) / "manifest.json").stat().st_ino == before.st_ino
    assert store.numbers() == [0, 1, 2]


def test_other_weights_under_a_number_remove_what_followed(store: WeightStore):
    old = [store.publish(tensors(n), number=n, step=n) for n in (1, 2, 3)]
    new = store.publish(tensors(9), number=2, step=2)
    assert store.numbers() == [0, 1, 2]
    assert new.digest != old[1].digest
    assert store.verify(2) == new


@pytest.mark.parametrize("left", ["nothing", "weights", "cut", "manifest first"])
def test_whatever_a_kill_leaves_is_passed_over(store: WeightStore, left: str):
    version = store.publish(tensors(1), number=1, step=1)
    part = store.folder / ".v000002.0badcafe.part"
    part.mkdir()
    if left in ("weights", "cut"):
        data = (Path(version.path) / "model.safetensors").read_bytes()
        (part / "model.safetensors").write_bytes(data[: -10 if left == "cut" else None])
    if left == "manifest first":
        (part / "manifest.json").write_text("{")
    assert WeightStore(store.folder).latest() == version
    again = WeightStore(store.folder).publish(tensors(2), number=2, step=2)
    assert not part.exists()
    assert store.latest() == again


def test_a_folder_without_manifest_is_not_a_version(store: WeightStore):
    shutil.copytree(store.folder / "v000000", store.folder / "v000001")
    (store.folder / "v000001/manifest.json").unlink()
    assert store.numbers() == [0]
    assert store.publish(tensors(1), number=1, step=1).number == 1


def test_damage_is_named(store: WeightStore):
    folder = Path(store.publish(tensors(1), number=1, step=1).path)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    store.get(1)
    with pytest.raises(CorruptError, match=r"v000001/model\.safetensors: not the weights"):
        store.verify(1)
    weights.unlink()
    with pytest.raises(CorruptError, match=r"model\.safetensors: missing"):
        store.get(1)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CorruptError, match=r"v000001/manifest\.json"):
        store.latest()
    with pytest.raises(UsageError, match="no such version"):
        store.get(7)


def test_prune_keeps_the_base_and_the_newest(store: WeightStore):
    for n in range(1, 6):
        store.publish(tensors(n), number=n, step=n)
    assert store.prune(keep=2) == [1, 2, 3]
    assert store.numbers() == [0, 4, 5]
    assert store.prune(keep=0) == [4]
    assert store.numbers() == [0, 5]


def test_a_full_disk_leaves_the_store_as_it_was(store: WeightStore, monkeypatch):
    version = store.publish(tensors(1), number=1, step=1)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("insitu.weights.store.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.publish(tensors(2), number=2, step=2)
    assert [p.name for p in store.folder.glob(".*")] == []
    assert store.latest() == version
