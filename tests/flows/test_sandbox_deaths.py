"""kill -9 of sandboxes in the middle of a run: an agent's, the launcher of all, a judge's."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from tests.flows.test_rl import check_whole, finish, start

AGENT = """
import http.client, json, os, pathlib, time

host = os.environ["OPENAI_BASE_URL"].split("/")[2]
asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
to = http.client.HTTPConnection(host)
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
to.request("POST", "/v1/chat/completions", asked, {"Content-Type": "application/json", **key})
to.getresponse().read()
time.sleep(1)
path = next(p for p in sorted(pathlib.Path("src").rglob("core.py")))
path.write_text(path.read_text() + f"# {time.time_ns()}\\n")
"""
PRODUCT = """
name = "toy"
command = ["{python}", "-S", "{mount}/toy_agent.py"]
mount = "/opt/toy"
"""
JUDGE = "/opt/judge/run.py"


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """An agent that calls once, waits and changes a file, so that there is something to judge."""
    folder = tmp_path / "product"
    folder.mkdir()
    (folder / "toy_agent.py").write_text(AGENT)
    (folder / "product.toml").write_text(PRODUCT)
    return folder


def processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_text(errors="replace").split("\0")
        except OSError:
            continue  # it has ended


def status(pid: int, key: str) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ["0"]  # it has ended
    return next(line.split()[1:] for line in lines if line.startswith(f"{key}:"))


def space(pid: int) -> str:
    """Its PID namespace; empty where it has ended or may not be looked into."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def launcher(folder: RunFolder) -> int:
    """The process that makes this run's sandboxes; 0 where there is none."""
    named = [pid for pid, words in processes() if any(f"{folder.scratch}/m" in w for w in words)]
    # Those that it has just forked look the same.
    return next((pid for pid in named if _above(pid, 1) not in named), 0)


def first_process(folder: RunFolder, word: str) -> int:
    """Process 1 of one of the run's sandboxes, in which a command with `word` runs; else 0."""
    ours, all_of_them = launcher(folder), dict(processes())
    busy = {space(pid) for pid, words in all_of_them.items() if any(word in w for w in words)}
    for pid in all_of_them if busy - {""} else ():
        if status(pid, "NSpid")[-1] == "1" and space(pid) in busy and _above(pid, 2) == ours:
            return pid
    return 0


def _above(pid: int, levels: int) -> int:
    for _ in range(levels):
        pid = int(status(pid, "PPid")[0])
    return pid


def bubblewrap(folder: RunFolder, word: str) -> int:
    first = first_process(folder, word)
    return _above(first, 1) if first else 0


VICTIMS = {
    "a sandbox's first process": lambda folder: first_process(folder, "toy_agent.py"),
    "its bubblewrap": lambda folder: bubblewrap(folder, "toy_agent.py"),
    "the launcher": lambda folder: launcher(folder) * bool(first_process(folder, "toy_agent.py")),
    "a judge's sandbox": lambda folder: first_process(folder, JUDGE),
}


def kill(folder: RunFolder, process: subprocess.Popen[bytes], name: str) -> None:
    """Kill what is meant as soon as it is there, and wait until the ledger tells of it."""
    before, killed = faults(folder), False
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read().decode()
        if killed and faults(folder) > before:
            return
        if not killed and (victim := VICTIMS[name](folder)):
            try:
                os.kill(victim, signal.SIGKILL)
                killed = True
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    pytest.fail(f"{name}: {'no fault was written' if killed else 'never there'}")


def faults(folder: RunFolder) -> int:
    with Ledger(folder.ledger) as ledger:
        return len(ledger.faults())


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="another user's processes cannot be looked into")
def test_killed_sandboxes_cost_their_episodes_a_retry_and_nothing_else(recipe, product):
    steps = 16
    options = [f"rl.steps={steps}", f"product.file={product}", "rollout.retries=12"]
    process = start(recipe, *(part for option in options for part in ("--set", option)))
    folder = RunFolder(recipe.parent / "r")
    while not folder.ledger.exists():
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.1)
    time.sleep(1)  # the tables are made
    for name in VICTIMS:
        kill(folder, process, name)
    finish(process)
    check_whole(folder, steps=steps)
    with Ledger(folder.ledger) as ledger:
        ends = {row.outcome for row in ledger.episodes()}
        causes = [fault for fault in ledger.faults() if fault.cause != "the run ended"]
    # The agent always ends well: no kill was taken for its doing, and each for the sandbox's.
    assert ends == {"finished", "fault"}
    assert {fault.boundary for fault in causes} == {"sandbox"}
    assert len(causes) >= len(VICTIMS)
