"""The trainer as a process: a real one, killed for real."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.pocket import make_model
from tests.unit.train.made import batch, sample

from insitu.ledger.run_folder import RunFolder
from insitu.train.client import TrainerClient
from insitu.types import TrainError
from insitu.weights.store import WeightStore

TOKEN = "secret"
RECIPE = '[train]\nlr = 1e-3\ndtype = "float32"\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    root = tmp_path_factory.mktemp("run")
    folder = RunFolder.create(root / "r", RECIPE)
    WeightStore(folder.weights).adopt(make_model(root / "model"))
    return folder


def start(run: RunFolder, socket: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "insitu.train.server"]
    return subprocess.Popen(
        [*command, "--run", str(run.path), "--socket", str(socket)],
        env={**os.environ, "INSITU_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
    )


async def until_up(client: TrainerClient, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not await client.healthy():
        assert process.poll() is None
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_a_trainers_life(run: RunFolder, tmp_path: Path):
    socket = tmp_path / "t.sock"
    client = TrainerClient(socket, TOKEN)
    with pytest.raises(TrainError, match="FileNotFoundError"):
        await client.status()
    process = start(run, socket)
    try:
        await until_up(client, process)
        stranger = TrainerClient(socket, "wrong")
        with pytest.raises(TrainError, match="wrong token"):
            await stranger.publish()
        await stranger.close()

        first = await client.step(batch(0), number=1)
        assert (first.step, first.version) == (1, 1)
        assert await client.step(batch(0), number=1) == first
        version = await client.publish()
        assert version == WeightStore(run.weights).latest()
        assert version.number == 1
        assert (await client.save()).name == "step-00000001"
        with pytest.raises(TrainError, match="step 9 was asked for"):
            await client.step(batch(1), number=9)
        second = await client.step(batch(1), number=2)
        published = await client.publish()

        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(TrainError):
            await client.status()
        process = start(run, socket)
        await until_up(client, process)
        assert (await client.status()).step == 1
        again = await client.step(batch(1), number=2)
        assert again.loss == second.loss
        assert await client.publish() == published

        # A large step: the status is answered meanwhile, and death ends it with an error.
        step = asyncio.create_task(client.step([sample(900, seed=i) for i in range(150)]))
        while not (await client.status()).training:
            await asyncio.sleep(0.02)
        assert not step.done()
        process.send_signal(signal.SIGKILL)
        with pytest.raises(TrainError):
            await step
    finally:
        process.kill()
        process.wait()
        await client.close()


def test_it_ends_with_its_parent(run: RunFolder, tmp_path: Path):
    socket = tmp_path / "t.sock"
    program = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "insitu.train.server"]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *command, "--run", str(run.path), "--socket", str(socket)],
        env={**os.environ, "INSITU_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    end = time.monotonic() + 300
    while not socket.exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert time.monotonic() < end


@pytest.mark.parametrize("missing", ["token", "run"])
def test_what_is_missing_is_one_line_and_exit_code_2(run: RunFolder, tmp_path: Path, missing: str):
    token = "" if missing == "token" else TOKEN
    folder = tmp_path / "none" if missing == "run" else run.path
    done = subprocess.run(
        [sys.executable, "-m", "insitu.train.server", "--run", folder, "--socket", tmp_path / "s"],
        env={**os.environ, "INSITU_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
