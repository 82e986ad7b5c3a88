import io
import tarfile
import zipfile

import pytest

from insitu.tasks import unpack as unpacking
from insitu.tasks.licence import check_licence, is_permissive, licence_of
from insitu.tasks.unpack import unpack
from insitu.types import TaskError


def tar_of(path, members, links=()):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


def test_an_sdist_is_unpacked_without_its_top_folder_caches_and_links(tmp_path):
    archive = tar_of(
        tmp_path / "a-1.tar.gz",
        {"a-1/a.py": b"x = 1\n", "a-1/a.egg-info/SOURCES": b"", "a-1/__pycache__/a.pyc": b""},
        links=[("a-1/secret", "/etc/passwd")],
    )
    (tmp_path / "out").mkdir()
    unpack(archive, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").rglob("*")] == ["a.py"]


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "a/../../evil.py"])
def test_paths_that_lead_outside_are_refused(tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(TaskError, match="leads outside"):
        unpack(tar_of(tmp_path / "a.tar.gz", {"a/a.py": b"", name: b""}), out)
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr(name, "x")
        z.writestr("b", "x")
    with pytest.raises(TaskError, match="leads outside"):
        unpack(archive, out)
    assert not list(tmp_path.rglob("evil.py"))


def test_damaged_and_huge_archives_are_refused(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(b"\x1f\x8b" + b"0" * 50)
    with pytest.raises(TaskError, match="not a readable archive"):
        unpack(bad, out)
    monkeypatch.setattr(unpacking, "MAX_FILE_BYTES", 10)
    with pytest.raises(TaskError, match="too large"):
        unpack(tar_of(tmp_path / "big.tar.gz", {"a/b.py": b"x" * 11}), out)


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("BSD License", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND GPL-2.0", False),
        ("LGPL-3.0-or-later", False),
        ("Mozilla Public License 2.0 (MPL 2.0)", False),
        ("", False),
    ],
)
def test_permissive_licences(licence, allowed):
    assert is_permissive(licence) is allowed
    if not allowed:
        with pytest.raises(TaskError, match="permissive"):
            check_licence("x", licence, allow=False)
    check_licence("x", licence, allow=True)


def test_a_licence_is_found_in_metadata_or_file(tmp_path):
    assert licence_of(tmp_path, "License-Expression: ISC\n") == "ISC"
    assert (
        licence_of(tmp_path, "Classifier: License :: OSI Approved :: MIT License\n")
        == "MIT License"
    )
    assert licence_of(tmp_path, "") == ""
    (tmp_path / "LICENSE").write_text("GNU General Public License\nversion 3")
    assert not is_permissive(licence_of(tmp_path, ""))
    (tmp_path / "LICENSE").write_text("Redistribution and use in source and binary forms, with")
    assert licence_of(tmp_path, "License: UNKNOWN\n") == "BSD"
