"""What every sandbox sees besides its workspace: system folders and a small made-up `/etc`."""

import os
import shutil
from functools import lru_cache
from pathlib import Path

from insitu.sandbox.nest import EMPTY, HOST

BOX_UID = 1000
"""User and group id of the sandbox's user, seen from inside."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_COPIED = ("ld.so.cache", "ld.so.conf", "debian_version", "os-release", "alternatives")
# Host software that is no part of a plain system, and copies of packages under test.
_MASKED = ("usr/local", "usr/src", "usr/lib/python3*/*-packages", "usr/lib64/python3*/*-packages")


@lru_cache(maxsize=1)
def system_binds() -> tuple[str, ...]:
    """bubblewrap arguments for the read-only system folders."""
    out = ["--ro-bind", f"{HOST}/usr", "/usr"]
    for name in _SYSTEM:
        path = Path(HOST, name)
        if path.is_symlink():
            out += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            out += ["--ro-bind", str(path), f"/{name}"]
    for masked in _MASKED:
        for path in sorted(Path(HOST).glob(masked)):
            out += ["--ro-bind", EMPTY, f"/{path.relative_to(HOST)}"]
    return tuple(out)


def etc_folder(user: str, hostname: str, home: str) -> str:
    """A folder to be shown as `/etc`, made on first use."""
    folder = Path("/s", f"{user}@{hostname}")
    if folder.exists():
        return str(folder)
    folder.mkdir()
    ids = f"{BOX_UID}:{BOX_UID}"
    files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{user}:x:{ids}:{user}:{home}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\n{user}:x:{BOX_UID}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost\n",
        "hostname": f"{hostname}\n",
        "resolv.conf": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    for name in _COPIED:
        source = Path(HOST, "etc", name)
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        elif source.exists():
            shutil.copyfile(source, folder / name)
    for path in [folder, *folder.iterdir()]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return str(folder)


def last_capability() -> int:
    """Number of the kernel's last capability."""
    try:
        return int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    except OSError:
        return 40


def resolve_on_host(path: str) -> str:
    """Where the host's absolute `path` is in the launcher's tree, with links followed there."""
    current = os.path.normpath(path)
    for _ in range(40):
        done = ""
        for part in current.strip("/").split("/"):
            step = f"{done}/{part}"
            if os.path.islink(HOST + step):  # noqa: PTH114
                target = os.readlink(HOST + step)  # noqa: PTH115
                rest = current[len(step) :]
                current = os.path.normpath(os.path.join(done or "/", target) + rest)  # noqa: PTH118
                break
            done = step
        else:
            return HOST + done
    raise OSError(40, "too many levels of symbolic links", path)
