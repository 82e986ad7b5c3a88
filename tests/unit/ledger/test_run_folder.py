import os
import subprocess
import sys

import pytest

from insitu.ledger.run_folder import RunFolder, list_runs
from insitu.types import UsageError

_HOLD = """
import sys, time
from pathlib import Path
from insitu.ledger.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_is_made_once_with_its_config(tmp_path):
    run = RunFolder.create(tmp_path / "demo", "[run]\nseed = 1\n", {"insitu": "0.1.0"})
    assert run.config.read_text() == "# insitu 0.1.0\n[run]\nseed = 1\n"
    assert run.checkpoint(3).name == "step-3"
    assert run.name == "demo"
    with pytest.raises(UsageError, match="--resume"):
        RunFolder.create(tmp_path / "demo", "")
    assert RunFolder.open(tmp_path / "demo").exists


def test_a_folder_without_a_config_is_no_run(tmp_path):
    with pytest.raises(UsageError, match="no run is there"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="demo"):
        RunFolder.create(tmp_path / "file" / "demo", "")


def test_runs_are_listed_youngest_first(tmp_path):
    for age, name in enumerate(("b", "a")):
        run = RunFolder.create(tmp_path / name, "")
        os.utime(run.config, (1000 + age, 1000 + age))
    (tmp_path / "no run").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "absent") == []


def test_one_process_owns_a_run_and_a_dead_one_does_not(tmp_path):
    run = RunFolder.create(tmp_path / "demo", "")
    with run.lock(), pytest.raises(UsageError, match="this process"), run.lock():
        pass
    owner = subprocess.Popen([sys.executable, "-c", _HOLD, run.path], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"process {owner.pid} owns"), run.lock():
            pass
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    with run.lock():
        pass


def test_sockets_have_short_private_paths(tmp_path):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    socket = RunFolder(deep).socket("engine")
    assert len(str(socket)) < 100
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert socket == RunFolder(deep).socket("engine")
    assert socket != RunFolder(tmp_path).socket("engine")


def test_the_owner_is_shown(tmp_path):
    run = RunFolder.create(tmp_path / "demo", "")
    assert run.owner() is None
    with run.lock():
        assert run.owner() == os.getpid()
    assert run.owner() is None
