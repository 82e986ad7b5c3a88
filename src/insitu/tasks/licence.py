"""Which licences allow a package's code to be changed, copied and learnt from."""

import re
from pathlib import Path

from insitu.types import TaskError

PERMISSIVE = (
    "0BSD",
    "Apache",
    "BSD",
    "CC0",
    "HPND",
    "ISC",
    "MIT",
    "PSF",
    "Python Software Foundation",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)
_REFUSED = re.compile(r"\b[AL]?GPL|\bMPL|\bEUPL|\bSSPL|\bBUSL|proprietary|commercial", re.I)
_TEXTS = {
    "MIT": "Permission is hereby granted, free of charge, to any person obtaining a copy",
    "BSD": "Redistribution and use in source and binary forms",
    "Apache-2.0": "Apache License",
    "ISC": "Permission to use, copy, modify, and/or distribute this software",
    "PSF": "PYTHON SOFTWARE FOUNDATION LICENSE",
    "Unlicense": "This is free and unencumbered software released into the public domain",
}
_COPYLEFT = re.compile(r"GNU (LESSER |AFFERO )?GENERAL PUBLIC LICENSE|Mozilla Public License", re.I)


def licence_of(folder: Path, metadata: str) -> str:
    """The licence of a source tree as far as it says: SPDX expression, classifier or text.

    Args:
        folder: the source tree, for its licence files.
        metadata: text of PKG-INFO, METADATA or pyproject.toml.

    Returns:
        e.g. `"MIT"` or `"Apache-2.0 OR BSD-2-Clause"`; empty where it does not say.
    """
    for pattern in (
        r"^License-Expression:\s*(.+)$",
        r"^Classifier: License :: OSI Approved :: (.+)$",
        r"^License:\s*(.{1,60})$",
        r"^license\s*=\s*[\"'](.+?)[\"']",
        r"^license\s*=\s*\{\s*text\s*=\s*[\"'](.+?)[\"']",
    ):
        for found in re.findall(pattern, metadata, re.M):
            if "UNKNOWN" not in found and "file" not in found.lower():
                return str(found).strip()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.lower().startswith(("licen", "copying", "unlicense")):
            text = " ".join(path.read_text(errors="replace")[:20_000].split())
            if _COPYLEFT.search(text):
                return "GPL or MPL (by its licence file)"
            for name, phrase in _TEXTS.items():
                if phrase.lower() in text.lower():
                    return name
    return ""


def is_permissive(licence: str) -> bool:
    """Whether every part that must hold is permissive; of `A OR B` one is enough."""
    if not licence:
        return False
    return any(
        all(_allowed(part) for part in re.split(r"\s+AND\s+", choice))
        for choice in re.split(r"\s+OR\s+", licence)
    )


def _allowed(part: str) -> bool:
    if _REFUSED.search(part):
        return False
    return any(re.search(rf"\b{re.escape(name)}", part, re.I) for name in PERMISSIVE)


def check_licence(name: str, licence: str, *, allow: bool) -> None:
    """Refuse a package whose licence is not permissive, unless `allow` says that it may be used.

    Raises:
        TaskError: names package and licence.
    """
    if not allow and not is_permissive(licence):
        raise TaskError(
            f"{name} has {'the licence ' + licence if licence else 'no licence that I can find'},"
            " which is not on the permissive list",
            remedy="choose another package, or allow its licence if you hold the rights",
        )
