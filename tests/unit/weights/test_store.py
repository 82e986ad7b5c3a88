import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from insitu.kit.digest import digest_file
from insitu.types import CorruptError, UsageError
from insitu.weights.raw import TensorBytes, read_tensors, to_bf16, write_tensors
from insitu.weights.store import WeightStore


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

    monkeypatch.setattr("insitu.weights.raw.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.publish(tensors(2), number=2, step=2)
    assert [p.name for p in store.folder.glob(".*")] == []
    assert store.latest() == version


def test_later_versions_share_the_bases_tokenizer_file(store: WeightStore, base: Path):
    folder = Path(store.publish(tensors(1), number=1, step=1).path)
    first = (store.folder / "v000000/tokenizer.json").stat().st_ino
    assert (folder / "tokenizer.json").stat().st_ino == first
    assert (base / "tokenizer.json").stat().st_ino != first


def test_adopting_a_model_rounds_it_to_bf16(tmp_path: Path, base: Path):
    write_tensors(base / "model.safetensors", tensors(3))
    store = WeightStore(tmp_path / "w")
    assert store.is_empty
    version = store.adopt(base)
    assert not store.is_empty
    assert version.number == 0
    got = read_tensors(Path(version.path) / "model.safetensors")
    assert {t.dtype for t in got.values()} == {"BF16"}
    exact = np.frombuffer(tensors(3)["b"].data, dtype="<f4")
    near = (np.frombuffer(got["b"].data, dtype="<u2").astype("<u4") << 16).view("<f4")
    assert np.abs(near - exact).max() <= np.abs(exact).max() * 2**-8
    assert json.loads((Path(version.path) / "config.json").read_text())["dtype"] == "bfloat16"


def test_rounding_is_torchs():
    torch = pytest.importorskip("torch")
    values = np.array([1.0, 1.00390625, 1.01171875, -3.4e38, 1e-40, np.inf, np.nan], dtype="<f4")
    values = np.concatenate([values, np.random.default_rng(0).normal(size=999).astype("<f4")])
    ours = to_bf16(TensorBytes(dtype="F32", shape=values.shape, data=values.tobytes()))
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view("<u2")
    mine = np.frombuffer(ours.data, dtype="<u2")
    number = ~np.isnan(values)
    assert (mine[number] == theirs[number]).all()
    assert (mine[~number] & 0x7FFF > 0x7F80).all()


def test_adopting_names_what_is_wrong(tmp_path: Path, base: Path):
    store = WeightStore(tmp_path / "w")
    with pytest.raises(UsageError, match=r"no config\.json"):
        store.adopt(tmp_path / "absent")
    with pytest.raises(CorruptError, match=r"model\.safetensors: damaged"):
        store.adopt(base)
    (base / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        store.adopt(base)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptError, match=r"model-00001-of-00002\.safetensors: missing shard"):
        store.adopt(base)
    assert store.is_empty


def test_the_context_is_read_from_the_config(tmp_path: Path, base: Path, store: WeightStore):
    with pytest.raises(CorruptError, match="max_position_embeddings"):
        store.context_of(0)
    (base / "config.json").write_text('{"max_position_embeddings": 2048}')
    other = WeightStore(tmp_path / "w")
    other.publish(tensors(0), number=0, step=0, side_files=base)
    assert other.context_of(0) == 2048
