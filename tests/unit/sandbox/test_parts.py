"""Parts of the sandbox room that need no sandbox."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.sandbox import backends, cgroups, diff, guard, paths, probe, seccomp
from insitu.types import Change, ChangeKind, ConfigError, Limits, SandboxError


def test_an_unknown_back_end_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'bubblewrap'"):
        backends.open_backend("bublewrap", tmp_path)
    with pytest.raises(ConfigError, match="Use one of: bubblewrap"):
        backends.open_backend("docker", tmp_path)


def test_every_back_end_opens(tmp_path):
    for name in backends.BACKENDS:
        assert backends.open_backend(name, tmp_path).name == name


def test_probe_tells_of_every_back_end():
    rows = probe.probe()
    assert [name for name, _, _ in rows] == sorted(backends.BACKENDS)
    assert all(detail for _, _, detail in rows)


# seccomp: run the program as the kernel would


def _run(program, nr, arch=0xC000003E, args=(0,) * 6):
    data = struct.pack("<iIQ6Q", nr, arch, 0, *args)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return value
        else:
            hit = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: accumulator & value,
            }
            at += if_true if hit[code] else if_false


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000


@pytest.mark.parametrize(
    ("nr", "args", "answer"),
    [
        (0, (), ALLOW),  # read
        (59, (), ALLOW),  # execve
        (165, (), EPERM),  # mount
        (101, (), EPERM),  # ptrace
        (435, (), ENOSYS),  # clone3
        (425, (), ENOSYS),  # io_uring_setup
        (56, (0x01200011,), ALLOW),  # fork
        (56, (0x003D0F00,), ALLOW),  # a thread
        (56, (0x10000011,), EPERM),  # clone with a user namespace
        (272, (0x400,), ALLOW),  # unshare of the file table
        (272, (0x80,), EPERM),  # unshare of the time namespace
        (41, (1, 1, 0), ALLOW),
        (41, (10, 2, 0), ALLOW),
        (41, (16, 3, 0), ALLOW),  # netlink route
        (41, (16, 3, 12), 0x50061),  # netlink netfilter
        (41, (40, 1, 0), 0x50061),  # vsock
        (16, (0, 0x5401), ALLOW),  # a plain terminal question
        (16, (0, 0x5412), EPERM),  # TIOCSTI
        (0x40000000, (), ENOSYS),  # x32
    ],
)
def test_the_filter_answers(nr, args, answer):
    program = seccomp.filter_program("x86_64")
    assert _run(program, nr, args=(*args, *(0,) * (6 - len(args)))) == answer


def test_another_architecture_is_killed():
    assert _run(seccomp.filter_program("x86_64"), 20, arch=0x40000003) == KILL
    assert _run(seccomp.filter_program("aarch64"), 40, arch=0xC00000B7) == EPERM
    assert _run(seccomp.filter_program("aarch64"), 63, arch=0xC00000B7) == ALLOW


# control groups


def _v2_tree(tmp_path):
    """Plain files in the shape of a unified hierarchy, three groups deep."""
    for folder in (tmp_path, tmp_path / "slice", tmp_path / "slice/scope"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu memory pids")
        (folder / "cgroup.procs").write_text("")
    return tmp_path


def test_the_unified_hierarchy_is_used_from_our_own_group_upwards(tmp_path):
    root = _v2_tree(tmp_path)
    (root / "slice/scope/cgroup.subtree_control").unlink()  # as a scope without delegation
    (root / "slice/insitu").mkdir()
    for name in ("cgroup.subtree_control", "cgroup.procs"):
        (root / "slice/insitu" / name).write_text("cpu memory pids")
    driver = cgroups.V2Driver(root, "/slice/scope")
    assert driver.usable()
    assert driver._base == root / "slice/insitu"


def test_no_usable_group_is_told(tmp_path):
    assert not cgroups.V2Driver(tmp_path, "/").usable()
    assert not cgroups.V1Driver(tmp_path).usable()


def test_v1_groups_hold_the_limits():
    driver = cgroups.V1Driver()
    if not driver.usable():
        pytest.skip("no version 1 control groups here")
    group = driver.make("test/limits", Limits(memory_mb=64, pids=7, cpus=0.5))
    try:
        base = Path("/sys/fs/cgroup")
        assert (base / "pids/insitu/test/limits/pids.max").read_text().strip() == "7"
        limit = base / "memory/insitu/test/limits/memory.limit_in_bytes"
        assert int(limit.read_text()) == 64 << 20
        assert (base / "cpu/insitu/test/limits/cpu.cfs_quota_us").read_text().strip() == "50000"
        assert "test/limits" in driver.groups()
        run = group.begin_exec()
        assert run.kill()
        run.close()
        assert group.oom_kills() == 0
    finally:
        group.close()
        driver.remove("test/limits")
    assert "test/limits" not in driver.groups()


def test_owners_are_told_apart():
    name = cgroups.owner_name()
    assert cgroups.owner_lives(name)
    assert not cgroups.owner_lives(f"{os.getpid()}.1")
    assert not cgroups.owner_lives("not-a-name")


# the diff, on folders made by hand


def _diff(upper, *layers, **caps):
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return diff.read_diff(fd, [str(p) for p in layers], diff.Caps(**caps))
    finally:
        os.close(fd)


def test_caps_leave_out_and_say_so(tmp_path):
    (tmp_path / "base").mkdir()
    upper = tmp_path / "upper"
    (upper / "a/b/c").mkdir(parents=True)
    (upper / "a/b/c/deep").write_text("x")
    (upper / "big").write_text("x" * 50)
    (upper / "s1").write_text("x" * 8)
    (upper / "s2").write_text("x" * 8)
    found = _diff(upper, tmp_path / "base", file_bytes=10, total_bytes=10, depth=2)
    assert len(found.changes) == 1
    assert sorted(s.split(":")[0] for s in found.skipped if s[0] != "s") == ["a/b/c", "big"]
    few = _diff(upper, tmp_path / "base", files=2)
    assert len(few.changes) <= 2
    assert any("more than 2" in s for s in few.skipped)


def test_lower_links_are_never_followed(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/l").symlink_to(tmp_path)
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/l").symlink_to("other")
    [change] = _diff(tmp_path / "upper", tmp_path / "base").changes
    assert (change.kind, change.symlink) == (ChangeKind.MODIFIED, "other")


@given(
    st.dictionaries(
        st.sampled_from(["a", "b/c", "b/d", "e/f/g", "h"]),
        st.tuples(st.binary(max_size=20), st.sampled_from([0o644, 0o755])),
    )
)
def test_what_is_applied_is_what_the_diff_reads(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("apply")
    (root / "upper").mkdir()
    (root / "base").mkdir()
    changes = [
        Change(path=p, kind=ChangeKind.ADDED, content=content, mode=mode)
        for p, (content, mode) in sorted(files.items())
    ]
    fd = os.open(root / "upper", os.O_RDONLY | os.O_DIRECTORY)
    try:
        diff.apply_changes(fd, changes, None)
    finally:
        os.close(fd)
    assert _diff(root / "upper", root / "base").changes == changes


def test_what_does_not_fit_is_a_conflict(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder/x").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path in ("file/inner", "folder", "link/inner"):
            with pytest.raises(guard.ConflictError):
                diff.apply_changes(fd, [Change(path=path, kind=ChangeKind.ADDED)], None)
        with pytest.raises(guard.ConflictError):
            diff.apply_changes(fd, [Change(path="folder", kind=ChangeKind.DELETED)], None)
        diff.apply_changes(fd, [Change(path="nothing/here", kind=ChangeKind.DELETED)], None)
    finally:
        os.close(fd)


@given(st.text())
def test_no_path_that_is_accepted_leads_out(path):
    try:
        guard.check_relative(path)
    except SandboxError:
        return
    assert not path.startswith("/")
    assert ".." not in path.split("/")


def test_the_interpreter_is_shown_at_its_own_path():
    mounts = paths.interpreter_mounts()
    program = Path(paths.interpreter())
    assert program.exists()
    if mounts:
        assert program.is_relative_to(mounts[0].target)
        assert all(m.source == paths.EMPTY_SOURCE for m in mounts[1:])


def test_packages_of_an_environment_are_found(tmp_path):
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    assert paths.packages_inside(tmp_path) == "/opt/env/lib/python3.11/site-packages"
    assert paths.packages_inside(tmp_path / "none") == "/opt/env"
