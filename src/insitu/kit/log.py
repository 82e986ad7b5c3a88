"""Logging: one line per event to standard error, and to a file where a run has one."""

import logging
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def get_log(name: str) -> logging.Logger:
    """The logger of a room, e.g. `get_log("engine")`."""
    return logging.getLogger(f"insitu.{name}")


def setup_log(*, level: str = "WARNING", file: Path | None = None) -> None:
    """Send insitu's log to standard error at `level` and, at INFO, to `file`."""
    root = logging.getLogger("insitu")
    root.handlers.clear()
    root.setLevel(logging.DEBUG)
    stream = logging.StreamHandler()
    stream.setLevel(level)
    handlers: list[logging.Handler] = [stream]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        to_file = logging.FileHandler(file)
        to_file.setLevel(logging.INFO)
        handlers.append(to_file)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
