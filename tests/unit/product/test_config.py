from pathlib import Path

import pytest

from insitu.product.config import read_product
from insitu.types import ConfigError, Limits

MENDER = Path(__file__).parents[3] / "examples/mender"

SMALL = 'name = "small"\ncommand = ["run"]\nmount = "/opt/small"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "product.toml"
    file.write_text(text)
    return file


def test_the_reference_product_is_read() -> None:
    product = read_product(MENDER)
    assert product == read_product(MENDER / "product.toml")
    assert product.name == "mender"
    assert product.source_folder == MENDER
    assert product.env.model == "MENDER_MODEL"
    assert product.sandbox_limits() == Limits(memory_mb=768)
    assert product.kind_of("run_tests") == "test"
    assert product.kind_of("search") == "read"
    assert product.kind_of("wat") is None
    assert product.fidelity.intended


def test_defaults(tmp_path: Path) -> None:
    product = read_product(write(tmp_path, SMALL))
    assert product.dialect == "openai-chat"
    assert product.env.base_url == "OPENAI_BASE_URL"
    assert product.sandbox_limits() == Limits()
    assert product.kind_of("edit") is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("prot = 3\n", "unknown key `prot`. Did you mean `port`."),
        ("[tools]\nedits = []\n", "unknown key `tools.edits`. Did you mean `edit`."),
        ("[env]\nsets = 1\n", "unknown key `env.sets`. Did you mean `set`."),
        ('folder = "x"\n', "unknown key `folder`. Remove it."),
        ("port = 70000\n", "`port`: "),
        ('workdir = "here"\n', "`workdir`: "),
        ('issue = "ISSUE.md"\n', "`issue`: "),
        ('prepare = ["{home}"]\n', "unknown placeholder {home} (known: issue, mount"),
        ('[env.set]\nA = "{b}"\n', "unknown placeholder {b}"),
        ('source = "nowhere"\n', "`source` = 'nowhere' is no folder"),
        ("[limits]\nmemory_mb = 1\n", "`limits.memory_mb`: "),
        ("= 3", "not TOML"),
    ],
)
def test_mistakes_are_named_with_their_remedy(tmp_path: Path, change: str, problem: str) -> None:
    file = write(tmp_path, SMALL + change)
    with pytest.raises(ConfigError) as e:
        read_product(file)
    assert str(file) in str(e.value)
    assert problem in str(e.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"product\.toml: No such file"):
        read_product(tmp_path)
