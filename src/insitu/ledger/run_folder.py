"""A run is a folder: where everything in it lies, and who owns it.

runs/<name>/
  config.toml         resolved, with the versions of the software on its first lines
  ledger.sqlite       what happened
  episodes/*.parquet  calls and segments as tokens
  metrics.parquet     per step
  checkpoints/step-N/ trainer state
  weights/            the weight store
  report/             what `insitu report` shows, as files
  log.txt             what the controller logged
"""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from insitu.kit.atomic import write_atomic
from insitu.kit.digest import digest_bytes
from insitu.kit.disk import mendable
from insitu.types import UsageError

_owned: set[Path] = set()


class RunFolder:
    """The paths of one run.

    Example: `folder = RunFolder.create(Path("runs/demo"), config_toml, versions)`, then
    `with folder.lock(): …`; a reader needs `RunFolder.open(Path("runs/demo"))` only.
    """

    def __init__(self, path: Path) -> None:
        """Paths only; nothing is touched."""
        self.path = path
        self.config = path / "config.toml"
        self.ledger = path / "ledger.sqlite"
        self.episodes = path / "episodes"
        self.metrics = path / "metrics.parquet"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights"
        self.report = path / "report"
        self.log = path / "log.txt"
        self.scratch = path / "scratch"
        """Where sandboxes keep their files while they live."""

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.resolve().name

    @property
    def exists(self) -> bool:
        """Whether a run has been created here."""
        return self.config.is_file()

    @property
    def _lock_path(self) -> Path:
        return (self.path / ".lock").resolve()

    def checkpoint(self, step: int) -> Path:
        """Folder of the trainer's state after `step`."""
        return self.checkpoints / f"step-{step}"

    def socket(self, name: str) -> Path:
        """Path of a Unix socket of the run's services.

        Not in the run's folder: the kernel allows about 100 bytes for such a path. Its folder is
        made, for this user alone.
        """
        tag = digest_bytes(str(self.path.resolve()).encode())[:12]
        folder = Path(tempfile.gettempdir()) / f"insitu-{os.getuid()}" / tag
        folder.mkdir(parents=True, exist_ok=True)
        for private in (folder.parent, folder):
            private.chmod(0o700)
        return folder / f"{name}.sock"

    def owner(self) -> int | None:
        """Process that owns the run, if one does; for showing only, `lock` decides."""
        lock = self._lock_path
        if lock in _owned:
            return os.getpid()
        try:
            pid = int(lock.read_text())
            os.kill(pid, 0)
        except PermissionError:
            return pid
        except (OSError, ValueError):
            return None
        return pid

    @classmethod
    def create(
        cls, path: Path, config_toml: str, versions: Mapping[str, str] | None = None
    ) -> "RunFolder":
        """Make the folder with its resolved config; `versions` go to the config's first lines.

        Raises:
            UsageError: a run is there already, or the folder cannot be written.
        """
        run = cls(path)
        if run.exists:
            raise UsageError(
                f"{path}: a run is there already",
                remedy="continue it with --resume, or give another run.name",
            )
        run.begin(config_toml, versions)
        return run

    def begin(self, config_toml: str, versions: Mapping[str, str] | None = None) -> None:
        """As `create`; a run that is there in name only is begun with this config instead.

        Raises:
            UsageError: the folder cannot be written.
        """
        head = "".join(f"# {name} {version}\n" for name, version in (versions or {}).items())
        try:
            for folder in (self.episodes, self.checkpoints, self.weights, self.report):
                folder.mkdir(parents=True, exist_ok=True)
            # Last, because it makes the folder a run.
            write_atomic(self.config, head + config_toml)
        except OSError as e:
            raise UsageError(f"{self.path}: {_reason(e)}", remedy=_remedy(e)) from e

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that exists, for reading or, under `lock`, for going on.

        Raises:
            UsageError: there is no run.
        """
        run = cls(path)
        if not run.exists:
            raise UsageError(f"{path}: no run is there", remedy="list them with `insitu runs`")
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Own the run while the block lasts; a dead owner's lock is gone with it.

        A POSIX record lock: not inherited by children, so a service that outlives a killed
        controller does not keep the run. Nothing else in this process may open `.lock`.

        Raises:
            UsageError: another process owns the run; names it.
        """
        path = self._lock_path
        if path in _owned:
            raise UsageError(f"{self.path}: this process owns the run already")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise UsageError(f"{self.path}: {_reason(e)}", remedy=_remedy(e)) from e
        try:
            self._take(descriptor)
            _owned.add(path)
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                yield
            finally:
                os.ftruncate(descriptor, 0)
                _owned.discard(path)
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            owner = _owner(descriptor)
            raise UsageError(
                f"{self.path}: process {owner} owns the run",
                remedy=f"wait for it to end, or end it with `kill {owner}`",
            ) from e


def list_runs(folder: Path) -> list[RunFolder]:
    """The runs in `folder`, the youngest first."""
    runs = [RunFolder(path) for path in folder.iterdir()] if folder.is_dir() else []
    runs = [run for run in runs if run.exists]
    return sorted(runs, key=lambda run: run.config.stat().st_mtime, reverse=True)


def _owner(descriptor: int) -> str:
    """Process id in the lock file; the owner writes it as soon as it holds the lock."""
    return os.pread(descriptor, 32, 0).decode().strip() or "unknown"


def _reason(e: OSError) -> str:
    full = mendable(e) if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else None
    return full.problem.removeprefix(f"{e.filename}: ") if full else e.strerror or str(e)


def _remedy(e: OSError) -> str:
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space on the disk"
    return "give a folder that you may write to as run.folder"
