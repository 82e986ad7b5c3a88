"""Errors of the operating system that the user can fix: a full disk, a folder that is closed."""

import errno

from insitu.types import UsageError

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not grow any more: a limit on its size (`ulimit -f`)",
}
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def mendable(e: BaseException) -> UsageError | None:
    """The error as one that the user can fix, with its remedy; None where it is no such error.

    Libraries that raise their own error for a failed write (torch, safetensors) are known by
    the system's words in it.
    """
    if isinstance(e, UsageError):
        return e
    if isinstance(e, OSError):
        # Of a copy the second one is where it is written to.
        name = e.filename2 or e.filename
        where = f"{name}: " if name else ""
        if e.errno in _FULL:
            remedy = "raise it, then go on" if e.errno == errno.EFBIG else _REMEDY
            return UsageError(f"{where}{_FULL[e.errno]}", remedy=remedy)
        if e.errno in _CLOSED and e.filename:
            reason = (e.strerror or "not allowed").lower()
            return UsageError(f"{where}{reason}", remedy="give a place that you may use")
        return None
    text = str(e)
    if "No space left on device" in text or _TORCH_WRITE in text:
        return UsageError("the disk is full", remedy=_REMEDY)
    return None


_REMEDY = "free some space, then go on"
_TORCH_WRITE = "PytorchStreamWriter failed writing"
