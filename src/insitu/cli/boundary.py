"""The command line's boundary: every way in which a verb can fail, as one line and an exit code.

0    done
1    a fault of the system or an unexpected error; the traceback is in the log
2    something the user can fix: "error: what is wrong. What to do."
130  interrupted from the keyboard
"""

import functools
import logging
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import typer

from insitu.kit.disk import mendable
from insitu.types import InsituError

P = ParamSpec("P")


def guarded(*, resume: str | None = None) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Let a verb end with an exit code and at most one line on standard error.

    Args:
        resume: what to add to the same command to go on after an interruption (`--resume`, or
            nothing where the verb goes on by itself); None: it cannot go on.
    """

    def decorate(verb: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(verb)
        def run(*args: P.args, **named: P.kwargs) -> None:
            try:
                verb(*args, **named)
            except typer.Exit:
                raise
            except BaseException as e:
                # The process ends here; each kind of error is told.
                raise typer.Exit(_tell(e, resume)) from e

        return run

    return decorate


def _tell(e: BaseException, resume: str | None) -> int:
    if isinstance(e, KeyboardInterrupt):
        typer.echo(_interrupted(resume), err=True)
        return 130
    if (problem := mendable(e)) is not None:
        typer.echo(f"error: {_one_line(problem)}", err=True)
        return 2
    if isinstance(e, SystemExit):
        return e.code if isinstance(e.code, int) else 1
    log = _log_traceback(e)
    known = isinstance(e, InsituError)
    kind = "" if known else f"unexpected {type(e).__name__}: "
    typer.echo(f"error: {kind}{_one_line(e)} (traceback: {log})", err=True)
    return 1


def _one_line(e: BaseException) -> str:
    return " ".join(str(e).split()) or type(e).__name__


def _interrupted(resume: str | None) -> str:
    if resume is None:
        return "interrupted"
    argv = ["insitu", *sys.argv[1:]]
    if resume and resume not in argv:
        argv.append(resume)
    return f"interrupted; go on with: {shlex.join(argv)}"


def _log_traceback(e: BaseException) -> Path:
    """Append the traceback to the run's log, or to one of our own where there is no run."""
    handlers = logging.getLogger("insitu").handlers
    files = [Path(h.baseFilename) for h in handlers if isinstance(h, logging.FileHandler)]
    own = Path(tempfile.gettempdir()) / f"insitu-errors-{time.strftime('%Y%m%d')}.log"
    path = files[0] if files and files[0].parent.is_dir() else own
    with path.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(sys.argv)}\n")
        log.writelines(traceback.format_exception(e))
    return path
