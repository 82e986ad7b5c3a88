import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.config.check import keys
from insitu.config.load import load
from insitu.config.policy import PolicyConfig
from insitu.config.tree import Config
from insitu.config.write import to_toml
from insitu.types import ConfigError


@pytest.fixture
def recipe(tmp_path):
    def write(text: str):
        path = tmp_path / "small.toml"
        path.write_text(text)
        return path

    return write


def test_a_recipe_and_its_overrides(recipe):
    path = recipe("[rl]\ngroup_size = 4\n[engine]\nslots = 8\n")
    config = load(
        path, ["rl.group_size=16", "rl.group_size=32", "policy.model=models/a b", "train.lr=1e-4"]
    )
    assert config.rl.group_size == 32
    assert config.engine.slots == 8
    assert config.policy.model == "models/a b"
    assert config.train.lr == 1e-4
    assert config.run.name == "small"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("product.arguments=['--max-steps', '8']", ("--max-steps", "8")),
        ("product.arguments=[]", ()),
    ],
)
def test_an_override_may_be_a_list(recipe, override, value):
    assert load(recipe(""), [override]).product.arguments == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[rl]\ngroup_sise = 1", "rl.group_sise: unknown key; did you mean group_size?"),
        ("[rl]\nlr = 1.0", "rl.lr: unknown key; did you mean train.lr?"),
        ("[rll]\n", "rll: unknown key; did you mean rl?"),
        ("zzz = 1", "zzz: unknown key; known: run, policy"),
        (
            "[[midtrain.train]]\nfoldr = 'a'",
            "midtrain.train.foldr: unknown key; did you mean folder?",
        ),
        ("[midtrain.shape]\nlayer = 1", "midtrain.shape.layer: unknown key; did you mean layers?"),
        ("[rl]\ngroup_size = 1", "rl.group_size: input should be greater than or equal to 2"),
        ("[rl]\ngroup_size = 'x'", "(given: 'x')"),
        ("[rl]\nsteps = true", "rl.steps: "),
        ("rl = 3", "rl: input should be"),
        ("[[midtrain.train]]\nweight = 1", "midtrain.train.0: name one of folder, code"),
        ("[run]\nname = '../x'", "run.name: "),
        ("[rl\n", "not TOML"),
    ],
)
def test_an_error_names_file_key_and_remedy_in_one_line(recipe, text, message):
    path = recipe(text)
    with pytest.raises(ConfigError) as e:
        load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert message in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.group_sise=1", "--set: rl.group_sise: unknown key; did you mean group_size?"),
        ("rl.group_size=1", "--set: rl.group_size: input should be"),
        ("rl.group_size", "not of the form"),
        ("=1", "not of the form"),
        ("rl..x=1", "not of the form"),
    ],
)
def test_an_error_of_an_override_says_so(recipe, override, message):
    with pytest.raises(ConfigError) as e:
        load(recipe(""), [override])
    assert message in str(e.value)


def test_a_missing_recipe(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml")


def test_what_a_verb_needs_is_asked_for_by_name(recipe):
    with pytest.raises(ConfigError, match=r"policy\.model is not set.*--set policy\.model"):
        load(recipe("")).require("run.name", "policy.model")


@pytest.mark.parametrize("describe", [False, True])
def test_the_resolved_tree_is_read_back(recipe, describe):
    path = recipe(
        "[[midtrain.train]]\nfolder = 'a'\n[[midtrain.train]]\nfolder = 'b'\nweight = 0.3\n"
        "[reward]\nformula = 'passed - 0.02 * \"x\"'\n[train]\nlr = 1e-7\n"
    )
    config = load(path)
    assert load(recipe(to_toml(config, describe=describe))) == config


@given(text=st.text())
def test_any_text_survives_being_written(text):
    import tomllib

    config = Config(policy=PolicyConfig(model=text))
    assert tomllib.loads(to_toml(config))["policy"]["model"] == text


def test_each_key_says_in_one_sentence_what_it_is():
    model: type = Config
    for key in keys(Config):
        model = Config
        *tables, name = key.split(".")
        for table in tables:
            annotation = model.model_fields[table].annotation
            model = annotation if isinstance(annotation, type) else annotation.__args__[0]
        text = model.model_fields[name].description
        assert text, f"{key} has no description"
        assert text.endswith("."), f"{key}: {text}"


def test_config_needs_nothing_heavy():
    code = (
        "import sys; import insitu.config.load, insitu.config.write;"
        "bad = {'torch', 'numpy', 'transformers', 'pyarrow'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
