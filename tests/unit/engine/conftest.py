from pathlib import Path

import pytest
import torch

from tests.unit.engine.made import make_model


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("qwen3"), tie_word_embeddings=False)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same architecture."""
    return make_model(tmp_path_factory.mktemp("other"), seed=1, tie_word_embeddings=False)
