"""Verdicts that are already known, in memory and in a folder of small files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from insitu.kit.atomic import write_atomic
from insitu.kit.codec import from_json, to_json
from insitu.kit.digest import digest_bytes
from insitu.kit.log import get_log
from insitu.types import Change, Verdict

_log = get_log("reward")


def changes_digest(changes: Sequence[Change]) -> str:
    """Hex digest of what the changes do, whatever their order."""
    parts: list[bytes] = []
    for c in sorted(changes, key=lambda c: (c.path, c.kind)):
        link = b"" if c.symlink is None else b"@" + c.symlink.encode()
        parts += [c.path.encode(), c.kind.encode(), c.content, b"%o" % c.mode, link]
    return digest_bytes(*parts)


class VerdictCache:
    """Verdicts by key; `folder` None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, Verdict] = {}

    def get(self, key: str) -> Verdict | None:
        """The verdict known under `key`, marked as cached. A damaged file is as none."""
        found = self._memory.get(key)
        if found is None and self._folder is not None:
            found = self._load(self._folder / key[:2] / f"{key}.json")
            if found is not None:
                self._memory[key] = found
        return dataclasses.replace(found, cached=True) if found else None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict. A full disk is logged and costs only the cache."""
        self._memory[key] = verdict
        if self._folder is not None:
            try:
                write_atomic(self._folder / key[:2] / f"{key}.json", to_json(verdict))
            except OSError as e:
                _log.warning("verdict not cached on disk: %s", e)

    def _load(self, path: Path) -> Verdict | None:
        try:
            return from_json(Verdict, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as e:
            _log.warning("%s ignored: %s", path, e)
            return None
