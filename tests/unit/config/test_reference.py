from pathlib import Path

from insitu.config.check import keys
from insitu.config.reference import reference
from insitu.config.tree import Config

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_what_the_tree_says():
    """Rewrite it with `python -m insitu.config.reference > docs/configuration.md`."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_every_key_has_one_row():
    page = reference()
    for key in keys(Config):
        assert page.count(f"| `{key}` |") == 1, key
