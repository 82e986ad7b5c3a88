"""What every sandbox back-end must do and hold; runs over all that work on this machine."""

import asyncio
import gc
import os
import socket
import stat
import time
from pathlib import Path

import pytest
import pytest_asyncio

from insitu.sandbox.backends import BACKENDS, open_backend
from insitu.sandbox.paths import interpreter, interpreter_mounts
from insitu.types import (
    Change,
    ChangeKind,
    Forward,
    Limits,
    Mount,
    SandboxError,
    SandboxSpec,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKDIR = "/home/dev/repo"
LIMITS = Limits(memory_mb=128, pids=40, open_files=64, disk_mb=8, output_bytes=20_000)


@pytest_asyncio.fixture(params=sorted(BACKENDS), scope="module", loop_scope="module")
async def backend(request, tmp_path_factory):
    made = open_backend(request.param, tmp_path_factory.mktemp("boxes"))
    problems = await made.preflight()
    if problems:
        await made.close()
        pytest.skip(f"{request.param} does not work here: {problems}")
    yield made
    await made.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A workspace with a package, a link, a folder to delete, an executable."""
    root = tmp_path_factory.mktemp("base")
    (root / "pkg/deep").mkdir(parents=True)
    (root / "pkg/core.py").write_text("x = 1\n")
    (root / "pkg/deep/a.txt").write_text("a")
    (root / "pkg/deep/b.txt").write_text("b")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("pkg/core.py")
    return root


@pytest_asyncio.fixture(loop_scope="module")
async def box(backend, base):
    made = await backend.create(spec(base))
    yield made
    await made.destroy()


def spec(*layers, **other):
    return SandboxSpec(
        **{
            "layers": tuple(str(p) for p in layers),
            "workdir": WORKDIR,
            "limits": LIMITS,
            "mounts": interpreter_mounts(),
            **other,
        }
    )


async def sh(box, script, **other):
    result = await box.exec(["/bin/sh", "-c", script], **{"timeout_s": 20.0, **other})
    return result.exit_code, result.stdout.decode(), result.stderr.decode()


async def py(box, code, **other):
    argv = [interpreter(), "-I", "-S", "-c", code]
    result = await box.exec(argv, **{"timeout_s": 20.0, **other})
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


# exec


async def test_exec_tells_what_the_command_did(box):
    result = await box.exec(["/bin/sh", "-c", "echo out; echo err >&2; cat; exit 3"], stdin=b"in")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\nin", b"err\n")
    assert not result.truncated
    assert not result.timed_out
    assert 0 < result.wall_s < 20


async def test_a_large_standard_input_arrives(box):
    result = await box.exec(["/usr/bin/wc", "-c"], stdin=b"x" * 300_000)
    assert result.stdout.strip() == b"300000"


async def test_signals_and_missing_commands_have_shell_exit_codes(box):
    assert (await sh(box, "kill -TERM $$"))[0] == 128 + 15
    missing = await box.exec(["no-such-command"])
    assert missing.exit_code == 127
    assert b"no-such-command" in missing.stderr
    assert (await box.exec(["/home/dev/repo/pkg/core.py"])).exit_code == 126


async def test_the_environment_is_exactly_what_was_asked_for(box):
    os.environ["INSITU_TEST_SECRET"] = "s3cret"
    result = await box.exec(["/usr/bin/env"], env={"KEY": "k"})
    names = {line.partition("=")[0] for line in result.stdout.decode().splitlines()}
    assert names == {"PATH", "HOME", "LANG", "USER", "KEY"}


async def test_commands_start_in_the_workdir_as_the_user(box):
    _, out, _ = await sh(box, "pwd; whoami; hostname; echo $HOME")
    assert out.split() == [WORKDIR, "dev", "workstation", "/home/dev"]
    assert (await sh(box, "pwd", cwd="/tmp"))[1].strip() == "/tmp"


async def test_several_commands_run_at_once(box):
    started = time.monotonic()
    results = await asyncio.gather(*(sh(box, f"sleep 0.5; echo {i}") for i in range(5)))
    assert [r[1].strip() for r in results] == ["0", "1", "2", "3", "4"]
    assert time.monotonic() - started < 2.3


async def test_a_time_out_kills_the_tree_and_leaves_the_sandbox_usable(box):
    script = "(setsid sleep 333 &) ; trap '' TERM; echo started; sleep 333"
    result = await box.exec(["/bin/sh", "-c", script], timeout_s=0.4)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, b"started\n")
    code, out, _ = await sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert code == 0
    assert "sleep 333" not in out


async def test_a_time_out_spares_other_commands(box):
    other = asyncio.ensure_future(sh(box, "sleep 1; echo done"))
    await asyncio.sleep(0.1)
    assert (await box.exec(["/bin/sleep", "9"], timeout_s=0.2)).timed_out
    assert (await other)[1] == "done\n"


async def test_a_cancelled_exec_is_killed(box):
    task = asyncio.ensure_future(sh(box, "sleep 444"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "sleep 444" not in (await sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))[1]


async def test_endless_output_is_cut_and_never_blocks(box):
    result = await box.exec(["/bin/sh", "-c", "yes & yes >&2"], timeout_s=0.5)
    assert result.timed_out
    assert result.truncated
    assert len(result.stdout) + len(result.stderr) == LIMITS.output_bytes
    result = await box.exec(["/usr/bin/head", "-c", "3000000", "/dev/zero"])
    assert (result.exit_code, result.truncated) == (0, True)


async def test_a_background_process_that_holds_the_output_does_not_delay_the_end(box):
    started = time.monotonic()
    assert (await sh(box, "echo first; sleep 30 &"))[1] == "first\n"
    assert time.monotonic() - started < 5


# files and changes


async def test_changes_are_what_was_done(box):
    await sh(
        box,
        "echo 'x = 2' > pkg/core.py; echo n > new.txt; rm -r pkg/deep; chmod 644 run.sh;"
        "ln -s /etc/passwd out; rm link; mkdir -p d/e; echo y > d/e/y; touch pkg; mkfifo pipe",
    )
    changes = {c.path: c for c in await box.changes()}
    assert {p: c.kind.value for p, c in changes.items()} == {
        "d/e/y": "added",
        "link": "deleted",
        "new.txt": "added",
        "out": "added",
        "pkg/core.py": "modified",
        "pkg/deep/a.txt": "deleted",
        "pkg/deep/b.txt": "deleted",
        "run.sh": "modified",
    }
    assert changes["pkg/core.py"].content == b"x = 2\n"
    assert changes["out"].symlink == "/etc/passwd"
    assert changes["run.sh"].mode == 0o644
    assert list(changes) == sorted(changes)


async def test_a_touched_or_restored_file_is_no_change(box):
    await sh(
        box, "touch pkg/core.py; echo 1 > run2; rm run2; cp pkg/core.py t; cp t pkg/core.py; rm t"
    )
    assert await box.changes() == ()


async def test_a_folder_made_again_shows_what_vanished(box):
    await sh(
        box, "rm -r pkg/deep; mkdir pkg/deep; echo c > pkg/deep/c.txt; echo b > pkg/deep/b.txt"
    )
    kinds = {c.path: c.kind for c in await box.changes()}
    assert kinds == {
        "pkg/deep/a.txt": ChangeKind.DELETED,
        "pkg/deep/b.txt": ChangeKind.MODIFIED,
        "pkg/deep/c.txt": ChangeKind.ADDED,
    }


async def test_files_and_folders_may_change_places(backend, base, box):
    await sh(
        box,
        "rm pkg/core.py; mkdir pkg/core.py; echo z > pkg/core.py/z; rm -r pkg/deep; echo f > pkg/deep",
    )
    changes = await box.changes()
    other = await backend.create(spec(base))
    try:
        await other.apply(changes)
        assert await other.read("pkg/core.py/z") == b"z\n"
        assert await other.read("pkg/deep") == b"f\n"
        assert await other.changes() == changes
    finally:
        await other.destroy()


async def test_changes_carry_over_to_a_fresh_sandbox(backend, base, box):
    await sh(
        box,
        "echo 'x = 3' > pkg/core.py; rm -r pkg/deep; echo '#!/bin/sh' > tool; chmod 755 tool; ln -s tool t2",
    )
    changes = await box.changes()
    other = await backend.create(spec(base))
    try:
        await other.apply(changes)
        assert await other.changes() == changes
        code, out, _ = await sh(other, "cat pkg/core.py; ls pkg; ./t2; echo more >> pkg/core.py")
        assert (code, out) == (0, "x = 3\ncore.py\n")
    finally:
        await other.destroy()


async def test_layers_stack_and_stay_untouched(backend, base, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/core.py").write_text("upper\n")
    made = await backend.create(spec(base, tmp_path))
    try:
        assert (await sh(made, "cat pkg/core.py; rm pkg/core.py; rm -r pkg/deep"))[1] == "upper\n"
    finally:
        await made.destroy()
    assert (tmp_path / "pkg/core.py").read_text() == "upper\n"
    assert (base / "pkg/deep/a.txt").exists()


async def test_read_and_write(box):
    await box.write("notes/new.txt", b"hello", mode=0o600)
    assert await box.read("notes/new.txt") == b"hello"
    assert await box.read(f"{WORKDIR}/notes/new.txt", max_bytes=2) == b"he"
    assert (await sh(box, "cat notes/new.txt; echo more >> notes/new.txt"))[0] == 0
    await sh(box, "echo t > /tmp/t")
    assert await box.read("/tmp/t") == b"t\n"
    for path in ("nothing", "pkg", "/dev/null", "/proc/1/root/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            await box.read(path)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", "/home/dev/x"])
async def test_paths_that_lead_out_are_refused(box, path):
    with pytest.raises(SandboxError):
        await box.apply([Change(path=path, kind=ChangeKind.ADDED, content=b"x")])
    with pytest.raises(SandboxError):
        await box.write(path, b"x")


async def test_links_never_lead_the_host_out(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host")
    target = tmp_path / "target"
    target.mkdir()
    await sh(box, f"ln -s {secret} s; ln -s {target} d; ln -s /proc/1/root{secret} m")
    for name in ("s", "m"):
        with pytest.raises(FileNotFoundError):
            await box.read(name)
    with pytest.raises(SandboxError):
        await box.write("d/x", b"x")
    await box.write("s", b"replaced")
    assert secret.read_text() == "host"
    assert list(target.iterdir()) == []


async def test_fifos_huge_and_sparse_files_do_not_come_out(box):
    await sh(box, "mkfifo f; truncate -s 8T sparse; head -c 5000000 /dev/zero > big; echo k > kept")
    started = time.monotonic()
    assert [c.path for c in await box.changes()] == ["kept"]
    with pytest.raises(FileNotFoundError):
        await box.read("f")
    assert time.monotonic() - started < 5


async def test_a_deep_tree_and_closed_folders_are_removed(backend, base):
    made = await backend.create(spec(base))
    deep = "import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')"
    await py(made, deep)
    await sh(made, "mkdir closed; echo x > closed/x; chmod 000 closed")
    await made.changes()
    started = time.monotonic()
    await made.destroy()
    assert time.monotonic() - started < 3


async def test_odd_file_names_are_survived(box):
    await py(
        box, r"open(b'bad\xff','w'); open('new\nline','w').write('n'); open('-rf','w').write('r')"
    )
    assert [c.path for c in await box.changes()] == ["-rf", "new\nline"]


# what can be seen


async def test_nothing_of_the_host_is_visible(box, tmp_path):
    (tmp_path / "canary").write_text("x")
    _, out, _ = await sh(box, f"ls -A / /home /root /opt; ls {tmp_path}; cat /etc/shadow; ls /sys")
    words = set(out.split())
    assert words & {"work", "srv", "mnt", "canary", "shadow", "kernel"} == set()
    _, out, _ = await sh(
        box, "cat /proc/mounts /proc/self/mountinfo /proc/self/cgroup /etc/passwd /etc/hosts"
    )
    assert str(tmp_path) not in out
    assert "insitu" not in out


async def test_process_one_tells_nothing(box):
    _, out, _ = await sh(box, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "s3cret" not in out
    assert "/insitu" not in out
    assert "INSITU" not in out


async def test_no_descriptor_is_inherited(box):
    leaked = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        out = await py(box, "import os; print(sorted(os.listdir('/proc/self/fd')))")
    finally:
        os.close(leaked)
    assert eval(out) in (["0", "1", "2"], ["0", "1", "2", "3"])  # 3: the listing itself


async def test_no_process_of_the_sandbox_holds_the_hosts_files(box):
    code = (
        "import os, glob\n"
        "for p in glob.glob('/proc/[0-9]*/fd/*'):\n"
        "    try: print(os.readlink(p))\n"
        "    except OSError: pass"
    )
    found = (await py(box, code)).splitlines()
    held = {line if "memfd" in line else line.split(":")[0] for line in found}
    errors = "/memfd:errors (deleted)"  # where bubblewrap's own words go
    assert held <= {"pipe", "socket", "/dev/null", "anon_inode", errors}, held


async def test_installed_packages_of_the_host_are_hidden(box):
    code = "import sys, pathlib; print([str(p) for r in ('/usr/lib', '/usr/local/lib', sys.base_prefix + '/lib') for p in pathlib.Path(r).glob('python3*/*-packages/*') if p.name != 'README.txt'][:5])"
    assert await py(box, code) == "[]"


async def test_mounts_are_read_only(backend, base, tmp_path):
    (tmp_path / "tool.py").write_text("t")
    mounts = (Mount(source=str(tmp_path), target="/opt/product"),)
    single = Mount(source=str(tmp_path / "tool.py"), target="/home/dev/ISSUE.md")
    made = await backend.create(spec(base, mounts=(*mounts, single)))
    try:
        script = "cat /opt/product/tool.py ~/ISSUE.md; echo x > /opt/product/new || echo x > ~/ISSUE.md || touch /usr/x || touch /x || echo refused"
        assert (await sh(made, script))[1] == "ttrefused\n"
    finally:
        await made.destroy()
    assert [p.name for p in tmp_path.iterdir()] == ["tool.py"]


async def test_sandboxes_do_not_see_each_other(backend, base, box):
    other = await backend.create(spec(base))
    try:
        await sh(
            other, "echo secret > /tmp/s; echo secret > /dev/shm/s; echo s > mine; sleep 777 &"
        )
        _, out, _ = await sh(box, "ls /tmp /dev/shm .; cat /proc/[0-9]*/cmdline")
        assert "mine" not in out
        assert "777" not in out
        assert " s\n" not in out
    finally:
        await other.destroy()


# privileges

ATTACK = r"""
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def refused(name, result):
    code = ctypes.get_errno()
    print(name, 'OPEN' if result >= 0 else errno.errorcode[code])
def call(name, nr, *args):
    ctypes.set_errno(0)
    refused(name, libc.syscall(ctypes.c_long(nr), *args))
def touch(name, path, flags=os.O_WRONLY):
    try:
        os.close(os.open(path, flags)); print(name, 'OPEN')
    except OSError as e:
        print(name, errno.errorcode[e.errno])
touch('core_pattern', '/proc/sys/kernel/core_pattern')
touch('overcommit', '/proc/sys/vm/overcommit_memory')
touch('sysrq', '/proc/sysrq-trigger')
touch('kvm', '/dev/kvm', os.O_RDWR)
touch('shadow', '/etc/shadow', os.O_RDONLY)
N = None
call('mount', 165, b'none', b'/tmp', b'tmpfs', ctypes.c_ulong(0), N)
call('umount', 166, b'/proc', 0)
call('unshare-user', 272, ctypes.c_ulong(0x10000000))
call('clone-user', 56, ctypes.c_ulong(0x10000000 | 17), N, N, N, N)
call('clone3', 435, ctypes.create_string_buffer(88), ctypes.c_size_t(88))
call('setns', 308, os.open('/proc/self/ns/net', os.O_RDONLY), 0)
call('bpf', 321, 0, N, 0)
call('io_uring', 425, 1, ctypes.create_string_buffer(120))
call('keyctl', 250, 0, -3, 1)
call('ptrace', 101, 0x4206, 1, N, N)
call('vm_readv', 310, 1, N, 0, N, 0, 0)
call('pidfd_getfd', 438, 0, 0, 0)
call('perf', 298, N, 0, -1, -1, 0)
call('userfaultfd', 323, 0)
call('open_tree', 428, -100, b'/', 1)
call('chroot', 161, b'/tmp')
call('settime', 164, ctypes.create_string_buffer(16), N)
call('sethostname', 170, b'x', 1)
call('x32', 0x40000000 | 39)
for name, family, kind, proto in (('packet', 17, 3, 0), ('vsock', 40, 1, 0), ('raw', 2, 3, 1), ('alg', 38, 5, 0), ('nfnetlink', 16, 3, 12)):
    try:
        socket.socket(family, kind, proto); print(name, 'OPEN')
    except OSError as e:
        print(name, errno.errorcode[e.errno])
print('uid', 'OPEN' if os.getuid() == 0 else 'fine')
"""


async def test_kernel_doors_are_shut_and_the_host_is_unchanged(box):
    watched = [Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/core_pattern")]
    before = [p.read_text() for p in watched]
    out = await py(box, ATTACK)
    doors = dict(line.split() for line in out.splitlines())
    assert len(doors) == 30
    assert [name for name, answer in doors.items() if answer == "OPEN"] == []
    assert [p.read_text() for p in watched] == before


async def test_every_command_is_confined(box):
    _, out, _ = await sh(
        box,
        "grep -E '^(Seccomp|NoNewPrivs|Cap...):' /proc/self/status /proc/1/status /proc/2/status",
    )
    facts = [line.split(":", 1)[1].split(":") for line in out.splitlines()]
    values = {(k, v.strip()) for k, v in facts}
    assert {v for k, v in values if k == "NoNewPrivs"} == {"1"}
    assert {v for k, v in values if k == "Seccomp"} == {"2"}
    assert {int(v, 16) for k, v in values if k in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}


async def test_setuid_programs_gain_nothing(box):
    _code, out, _ = await sh(
        box,
        "cp /usr/bin/id my-id; chmod 4755 my-id; ./my-id -u; test -u /usr/bin/su && /usr/bin/su -c id; true",
    )
    assert out.split() == ["1000"]


async def test_files_made_inside_belong_to_nobody_important(box):
    if os.getuid() != 0:
        pytest.skip("needs root to look")
    await sh(box, "echo x > owned")
    info = os.stat("owned", dir_fd=box._views[1])  # in the layer that takes writes
    assert info.st_uid > 100_000


# network


async def test_the_hosts_network_is_out_of_reach(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            pass  # the host itself gets through
        code = (
            "import socket\n"
            f"for where in (('127.0.0.1', {port}), ('10.0.0.1', 80), ('169.254.169.254', 80)):\n"
            "    try:\n        socket.create_connection(where, timeout=2); print('OPEN')\n"
            "    except OSError as e: print(e.strerror)\n"
            "try:\n    socket.getaddrinfo('example.com', 80); print('OPEN')\n"
            "except OSError as e: print('no name')\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "try:\n    s.connect('\\0insitu-test'); print('OPEN')\n"
            "except OSError as e: print(e.strerror)\n"
        )
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind("\0insitu-test")
        abstract.listen()
        with abstract:
            assert "OPEN" not in await py(box, code)


async def test_a_forward_reaches_the_hosts_socket_and_nothing_else(backend, base, tmp_path):
    path = str(tmp_path / "s.sock")

    async def answer(reader, writer):
        data = await reader.read()
        writer.write(b"got " + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    made = await backend.create(spec(base, forwards=(Forward(port=8080, socket=path),)))
    code = (
        "import socket\nfor _ in range(3):\n"
        "    s = socket.create_connection(('127.0.0.1', 8080)); s.sendall(b'x' * 100000)\n"
        "    s.shutdown(socket.SHUT_WR); n = 0\n"
        "    while d := s.recv(65536): n += len(d)\n"
        "    print(n)\n"
    )
    try:
        assert (await py(made, code)).split() == ["100004"] * 3
    finally:
        await made.destroy()
        server.close()


async def test_a_forward_to_nobody_is_closed(backend, base, tmp_path):
    forwards = (Forward(port=8080, socket=str(tmp_path / "none")),)
    made = await backend.create(spec(base, forwards=forwards))
    code = "import socket\ns = socket.create_connection(('127.0.0.1', 8080)); print(s.recv(9))"
    try:
        assert await py(made, code) == "b''"
    finally:
        await made.destroy()


# limits


async def test_a_fork_bomb_is_held(box):
    code = (
        "import os, time\nn = 0\n"
        "for i in range(200):\n"
        "    try:\n        pid = os.fork()\n"
        "    except OSError: break\n"
        "    if pid == 0: time.sleep(60); os._exit(0)\n"
        "    n += 1\n"
        "print(n)\n"
    )
    started = await py(box, code)
    assert 10 < int(started) <= LIMITS.pids
    bomb = await box.exec(["/bin/sh", "-c", "f() { f | f & }; f; sleep 5"], timeout_s=0.5)
    assert bomb.exit_code != 0


async def test_memory_is_limited(box):
    code = "x = []\nwhile True: x.append(bytearray(8 << 20))"
    result = await box.exec([interpreter(), "-I", "-S", "-c", code], timeout_s=20)
    assert result.exit_code != 0
    assert not result.timed_out
    assert result.oom or b"MemoryError" in result.stderr
    assert (await sh(box, "echo alive"))[1] == "alive\n"


async def test_disk_is_limited(box):
    for place in (".", "/tmp", "/dev/shm", "/home/dev"):
        code, _, err = await sh(
            box, f"head -c 20000000 /dev/zero > {place}/fill; r=$?; rm {place}/fill; exit $r"
        )
        assert code != 0
        assert "No space" in err
    _, _, err = await sh(
        box, "i=0; while [ $i -lt 9000 ] && : > n$i; do i=$((i+1)); done; rm -f n*"
    )
    assert "No space" in err


async def test_open_files_are_limited(box):
    code = "import os\nn = 0\ntry:\n    while True: os.dup(0); n += 1\nexcept OSError: print(n)"
    assert int(await py(box, code)) < LIMITS.open_files


async def test_the_sandbox_cannot_kill_what_is_outside(box):
    victim = await asyncio.create_subprocess_exec("sleep", "30")
    await py(box, f"import os, signal\ntry: os.kill({victim.pid}, 9)\nexcept OSError: pass")
    await box.exec(["/bin/sh", "-c", "kill -9 -1"], timeout_s=5)
    assert victim.returncode is None
    victim.kill()
    await victim.wait()
    assert await box.changes() == ()  # an agent that kills its own sandbox is still judged


# the end


async def test_a_destroyed_sandbox_is_gone(backend, base):
    made = await backend.create(spec(base))
    running = asyncio.ensure_future(sh(made, "sleep 555"))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    await made.destroy()
    await made.destroy()
    assert time.monotonic() - started < 2
    assert (await running)[0] == 137
    cmdlines = [p.read_bytes() for p in _readable(Path("/proc").glob("[0-9]*/cmdline"))]
    assert b"sleep\x00555\x00" not in cmdlines
    for call in (
        sh(made, "true"),
        made.read("x"),
        made.write("x", b""),
        made.changes(),
        made.apply([]),
    ):
        with pytest.raises(SandboxError):
            await call


def _readable(paths):
    for path in paths:
        try:
            path.read_bytes()
        except OSError:
            continue
        yield path


async def test_nothing_is_left_after_many_sandboxes(backend, base):
    def left():
        gc.collect()  # what earlier tests dropped is closed now, not between the two counts
        fds = len(list(Path("/proc/self/fd").iterdir()))
        groups = len(list(Path("/sys/fs/cgroup").glob("**/insitu/*/*")))
        return fds, groups, Path("/proc/self/mounts").read_text().count("\n")

    await (await backend.create(spec(base))).destroy()
    before = left()

    async def one(i):
        made = await backend.create(spec(base))
        try:
            return await sh(made, f"echo {i} > f{i}; (setsid sleep 66 &); cat f{i}")
        finally:
            await made.destroy()

    results = await asyncio.gather(*(one(i) for i in range(12)))
    assert [r[1].strip() for r in results] == [str(i) for i in range(12)]
    assert all(now <= then for now, then in zip(left(), before, strict=True))


async def test_a_sandbox_that_cannot_be_made_is_told_and_leaves_nothing(backend, base):
    for bad in (
        spec(base, layers=("/no/such/folder",)),
        spec(base, workdir="/etc"),
        spec(base, mounts=(Mount(source="/no/such", target="/opt/x"),)),
    ):
        with pytest.raises(SandboxError):
            await backend.create(bad)
    made = await backend.create(spec(base))
    assert (await sh(made, "echo fine"))[1] == "fine\n"
    await made.destroy()


async def test_a_workspace_is_writable_where_it_was_not(backend, tmp_path):
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0o444)
    (tmp_path / "d").mkdir()
    made = await backend.create(spec(tmp_path))
    try:
        code, out, _ = await sh(
            made, "echo y > d/new && chmod u+w f && echo z > f && stat -c %U f d d/new"
        )
        assert (code, out.split()) == (0, ["dev"] * 3)
    finally:
        await made.destroy()
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o444
