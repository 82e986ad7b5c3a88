import errno
import json
import logging
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from insitu.cli import boundary
from insitu.cli.boundary import guarded
from insitu.cli.main import app
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.types import EngineError, UsageError

runner = CliRunner()

VERBS = [
    ["config", "show"],
    ["demo"],
    ["doctor"],
    ["episodes", "atif"],
    ["eval"],
    ["midtrain"],
    ["report"],
    ["rl"],
    ["runs"],
    ["tasks", "build"],
]


@pytest.mark.parametrize("verb", [[], *VERBS], ids=" ".join)
def test_every_help_has_an_example(verb):
    result = runner.invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    assert f"  insitu {' '.join(verb)}".rstrip() in result.output


def test_the_version():
    assert runner.invoke(app, ["--version"]).output.startswith("0.")


def test_config_show(tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text("[rl]\ngroup_size = 4\n")
    command = ["config", "show", str(recipe), "--set", "rl.group_size=16", "--set", "run.seed=3"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0
    assert "group_size = 16" in result.output
    assert "seed = 3" in result.output
    result = runner.invoke(app, ["config", "show", "--describe"])
    assert "# Episodes of one task that are compared with each other." in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "show", "absent.toml"], "error: absent.toml: No such file"),
        (["rl", "absent.toml"], "error: absent.toml: No such file"),
        (["midtrain", "absent.toml"], "error: absent.toml: No such file"),
        (["eval", "absent.toml"], "error: absent.toml: No such file"),
        (["tasks", "build", "absent.toml"], "error: absent.toml: No such file"),
        (["tasks", "build", "toolz", "--set", "build.taks=3"], "did you mean tasks?"),
        (["report", "absent"], "error: absent: no run is there"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, message):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.fixture
def failing():
    """A command that raises what it is given."""

    def make(error: BaseException, resume: str | None = None) -> typer.Typer:
        app = typer.Typer()

        @app.command()
        @guarded(resume=resume)
        def verb() -> None:
            raise error

        return app

    return make


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such thing", remedy="give another"), 2, "error: no such thing. Give"),
        (OSError(errno.ENOSPC, "No space", "a/b"), 2, "error: a/b: the disk is full. Free"),
        (EngineError("refused"), 1, "error: refused (traceback: "),
        (KeyError("x"), 1, "error: unexpected KeyError: 'x' (traceback: "),
    ],
)
def test_errors_are_one_line(failing, tmp_path, monkeypatch, error, code, line):
    monkeypatch.setattr(boundary.tempfile, "gettempdir", lambda: str(tmp_path))
    result = runner.invoke(failing(error), [])
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    logs = list(tmp_path.iterdir())
    assert len(logs) == (1 if code == 1 else 0)
    assert all("Traceback" in log.read_text() for log in logs)


def test_a_traceback_goes_to_the_runs_log(failing, tmp_path):
    log = logging.getLogger("insitu")
    handler = logging.FileHandler(tmp_path / "log.txt")
    log.addHandler(handler)
    try:
        result = runner.invoke(failing(RuntimeError("odd")), [])
    finally:
        log.removeHandler(handler)
        handler.close()
    assert str(tmp_path / "log.txt") in result.stderr
    assert "RuntimeError: odd" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("resume", "line"),
    [
        ("--resume", "interrupted; go on with: insitu rl a.toml --resume\n"),
        ("", "interrupted; go on with: insitu rl a.toml\n"),
        (None, "interrupted\n"),
    ],
)
def test_an_interruption_says_how_to_go_on(failing, monkeypatch, resume, line):
    monkeypatch.setattr(sys, "argv", ["insitu", "rl", "a.toml"])
    result = runner.invoke(failing(KeyboardInterrupt(), resume), [])
    assert (result.exit_code, result.stderr) == (130, line)


def test_runs_and_report(tmp_path):
    run = RunFolder.create(tmp_path / "small", "")
    with Ledger(run.ledger, write=True) as ledger:
        ledger.open_group("g1", task_id="t1", size=1)
        ledger.start_episode("e1", group_id="g1", task_id="t1", attempt=0, seed=1)
    (tmp_path / "broken").mkdir()
    RunFolder.create(tmp_path / "broken", "")
    result = runner.invoke(app, ["runs", str(tmp_path)])
    assert result.exit_code == 0
    assert "small" in result.output
    assert "at rest" in result.output
    result = runner.invoke(app, ["report", str(run.path)])
    assert result.exit_code == 0, result.output
    summary = json.loads((run.report / "summary.json").read_text())
    assert (summary["episodes"], summary["lost_episodes"]) == (1, 1)
    assert (run.report / "index.html").is_file()
    assert "no runs" in runner.invoke(app, ["runs", str(tmp_path / "absent")]).output


def test_doctor(tmp_path):
    result = runner.invoke(app, ["doctor", "--json"])
    found = json.loads(result.stdout)
    assert {"machine", "sandbox", "engine", "model API", "device"} == {f["part"] for f in found}
    # What no recipe can name is not on offer.
    assert [f["name"] for f in found if f["part"] == "engine"] == ["embedded"]
    assert all(f["detail"] for f in found)
    assert all(f["works"] or f["remedy"] for f in found)
    works = all(f["works"] for f in found if f["needed"])
    assert result.exit_code == (0 if works else 1)
    table = runner.invoke(app, ["doctor"])
    assert "bubblewrap" in table.output
    assert "The demo" in table.output


def test_the_script_is_installed():
    done = subprocess.run(
        [sys.executable, "-c", "from insitu.cli.main import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("0.")
