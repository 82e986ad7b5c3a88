"""One renderer over the pocket tokenizer for the room's tests."""

from pathlib import Path

import pytest

from insitu.render.renderer import TokenRenderer
from tests.pocket import make_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def renderer(tokenizer_dir: Path) -> TokenRenderer:
    return TokenRenderer(tokenizer_dir)
