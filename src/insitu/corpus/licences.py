"""Which licences a corpus may take, decided by an allow-list of permissive ones."""

import re
from collections.abc import Iterable

PERMISSIVE: dict[str, str] = {
    "mit": "MIT",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mit-0": "MIT-0",
    "expat": "MIT",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "modified bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause",
    "bsd-2-clause": "BSD-2-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "psf": "PSF-2.0",
    "psf-2.0": "PSF-2.0",
    "psf license": "PSF-2.0",
    "python-2.0": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "isc": "ISC",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "0bsd": "0BSD",
    "hpnd": "HPND",
    "cnri-python": "CNRI-Python",
    "zlib": "Zlib",
}
"""Licence names as package metadata spells them, in lower case, to SPDX identifiers."""

_CLASSIFIER = "License :: OSI Approved :: "


def permissive(metadata: str) -> str | None:
    """The SPDX identifier of a package's licence from its METADATA or PKG-INFO text.

    None where a field names anything that is not on the allow-list, or names nothing. A choice
    (`MIT OR GPL-2.0-only`) counts when one side is permissive; a conjunction only when all are.
    Example: `permissive("License-Expression: MIT\\n")` is `"MIT"`.
    """
    head = metadata.split("\n\n", 1)[0]
    expression = _fields(head, "License-Expression")
    if expression:
        return _expression(expression[0])
    classifiers = [
        c.removeprefix(_CLASSIFIER)
        for c in _fields(head, "Classifier")
        if c.startswith(_CLASSIFIER)
    ]
    if classifiers:
        return _all(classifiers)
    named = _fields(head, "License")
    return _expression(named[0]) if named else None


def _fields(head: str, name: str) -> list[str]:
    found = re.findall(rf"^{name}:(.*)$", head, re.MULTILINE)
    return [value.strip() for value in found if value.strip()]


def _one(name: str) -> str | None:
    return PERMISSIVE.get(name.strip(" ()\"'.").lower())


def _all(names: Iterable[str]) -> str | None:
    found = [PERMISSIVE.get(n.lower()) or _one(n) for n in names]
    known = [f for f in found if f is not None]
    return " AND ".join(sorted(set(known))) if known and len(known) == len(found) else None


def _expression(text: str) -> str | None:
    if _one(text):
        return _one(text)
    sides = re.split(r"\s+OR\s+|\s*/\s*", text)
    return next((found for s in sides if (found := _all(re.split(r"\s+AND\s+", s)))), None)
