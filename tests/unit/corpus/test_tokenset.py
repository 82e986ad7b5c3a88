import json
from pathlib import Path

import numpy as np
import pytest

from insitu.corpus.tokenset import TokenDocument, write_token_set
from insitu.types import UsageError


def document(*ids: int) -> TokenDocument:
    return TokenDocument(ids=ids, loss=tuple(i % 2 == 1 for i in ids))


def test_the_files_hold_what_the_trainer_reads(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    meta = write_token_set([document(1, 2, 3), document(65_535)], folder, about={"seed": 7})
    assert np.fromfile(folder / "tokens.bin", "<u2").tolist() == [1, 2, 3, 65_535]
    assert np.fromfile(folder / "mask.bin", np.uint8).tolist() == [1, 0, 1, 1]
    index = np.load(folder / "index.npy")
    assert index.dtype == np.int64
    assert index.tolist() == [[0, 3], [3, 1]]
    assert json.loads((folder / "meta.json").read_text()) == meta
    assert meta == {"seed": 7, "dtype": "uint16", "tokens": 4, "documents": 2, "targets": 3}


@pytest.mark.parametrize(
    "bad", [TokenDocument(ids=(65_536,), loss=(True,)), TokenDocument(ids=(1,), loss=())]
)
def test_what_does_not_fit_is_refused_and_nothing_is_left(
    tmp_path: Path, bad: TokenDocument
) -> None:
    with pytest.raises(UsageError):
        write_token_set([document(1), bad], tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no documents"):
        write_token_set([], tmp_path / "set")
