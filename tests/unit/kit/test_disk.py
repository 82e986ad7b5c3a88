import errno

import pytest

from insitu.kit.disk import mendable
from insitu.types import CorruptError, EngineError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space", "a/b"), "a/b: the disk is full. Free some space"),
        (OSError(errno.ENOSPC, "No space", "from", None, "to"), "to: the disk is full"),
        (OSError(errno.EDQUOT, "Quota"), "the disk quota is used up"),
        (OSError(errno.EFBIG, "Too large", "a"), "a: the file may not grow any more"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "a: permission denied. Give a"),
        (ValueError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (CorruptError("a: damaged", remedy="copy it"), "a: damaged. Copy it."),
    ],
)
def test_what_the_user_can_mend(error, line):
    assert str(mendable(error)).startswith(line)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "I/O error", "a"), KeyError("a"), EngineError("gone")]
)
def test_what_the_user_cannot_mend(error):
    assert mendable(error) is None
