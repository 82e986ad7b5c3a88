"""Write a task as a folder in Harbor's format (schema 1.4)."""

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from insitu.kit.atomic import atomic_folder
from insitu.kit.codec import to_json
from insitu.tasks.record import TaskRecord
from insitu.tasks.runner import TEST_ENV

_LOGS = "/logs/verifier"


def write_task(folder: Path, files: Mapping[str, str]) -> bool:
    """Write the folder whole or not at all; False where it is there already, just so.

    Args:
        folder: `<set>/tasks/<task id>`.
        files: what `task_files` gives.

    Raises:
        OSError: the disk is full or not writable.
    """
    if folder.is_dir() and all(_holds(folder / name, text) for name, text in files.items()):
        return False
    with atomic_folder(folder) as temporary:
        for name, text in files.items():
            path = temporary / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
            if name.endswith(".sh"):
                path.chmod(0o755)
    return True


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def task_files(
    record: TaskRecord, *, intact: str, broken: str, source: str, requires: Sequence[str]
) -> dict[str, str]:
    """The files of a task, by name.

    Args:
        record: what `insitu.json` holds.
        intact: text of the file before the bug.
        broken: and after.
        source: requirement that names the package, e.g. `"toolz==1.2.0"`.
        requires: what the package needs.
    """
    return {
        "task.toml": _toml(record, source),
        "instruction.md": instruction(record),
        "environment/Dockerfile": _dockerfile(record, source, requires),
        "environment/bug.patch": _patch(record.path, intact, broken),
        "tests/test.sh": _test_script(record),
        "solution/solve.sh": _solve_script(record),
        "solution/fix.patch": _patch(record.path, broken, intact),
        "insitu.json": to_json(record).decode() + "\n",
    }


def instruction(record: TaskRecord) -> str:
    """The user's message, one line."""
    return (
        f"`{record.qualname}` in {record.path}:{record.first_line} is broken: "
        f"{record.fail_to_pass[0]} fails. Fix it; leave the tests alone.\n"
    )


def test_command(record: TaskRecord) -> list[str]:
    """The command that judges, run in the workdir with `TEST_ENV` and the task's PYTHONPATH."""
    tests = [*record.fail_to_pass, *record.pass_to_pass]
    return ["python", "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *tests]


def _patch(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(s if s.endswith("\n") else s + "\n\\ No newline at end of file\n" for s in lines)


def _toml(record: TaskRecord, source: str) -> str:
    tables: dict[str, dict[str, object]] = {
        "": {"schema_version": "1.4", "source": source},
        "task": {
            "name": f"insitu/{record.task_id}",
            "description": f"Repair one bug in {record.qualname} of {source}",
            "keywords": ["repair", "python", record.family],
        },
        "agent": {"timeout_sec": 300.0, "network_mode": "no-network"},
        "verifier": {
            "timeout_sec": record.verifier_timeout_s,
            "environment_mode": "separate",
        },
        "environment": {"cpus": 1, "memory_mb": 1024, "workdir": record.workdir},
        "metadata.insitu": {
            "base": record.base,
            "env": record.env,
            "family": record.family,
            "use": record.use,
            "licence": record.licence,
            "digest": record.digest,
        },
    }
    lines: list[str] = []
    for name, table in tables.items():
        lines += ([f"\n[{name}]"] if name else []) + [
            f"{key} = {json.dumps(value)}" for key, value in table.items()
        ]
    return "\n".join(lines) + "\n"


def _dockerfile(record: TaskRecord, source: str, requires: Sequence[str]) -> str:
    """The same workspace for whoever runs the folder with Docker instead of insitu's layers."""
    paths = [f"{record.workdir}/{record.import_root}"] * (record.import_root != ".")
    lines = [
        "FROM python:3.11-slim",
        "RUN apt-get update && apt-get install -y --no-install-recommends patch"
        " && rm -rf /var/lib/apt/lists/*"
        f" && pip install --no-cache-dir {shlex.join(['pytest>=8', *requires])}",
        f"WORKDIR {record.workdir}",
        f"RUN pip download --no-deps --no-binary :all: --dest /tmp/sdist {shlex.quote(source)}"
        " && tar -xf /tmp/sdist/*.tar.* --strip-components=1"
        " && rm -rf /tmp/sdist *.egg-info build dist",
        "COPY bug.patch /tmp/bug.patch",
        "RUN patch -p1 < /tmp/bug.patch && rm /tmp/bug.patch",
        *[f"ENV {key}={value}" for key, value in TEST_ENV.items()],
        f"ENV PYTHONPATH={':'.join([*paths, record.workdir])}",
    ]
    return "\n".join(lines) + "\n"


def _test_script(record: TaskRecord) -> str:
    return (
        "#!/bin/bash\n"
        f"mkdir -p {_LOGS}\n"
        f"cd {shlex.quote(record.workdir)} || exit 1\n"
        f"if {shlex.join(test_command(record))}; then echo 1; else echo 0; fi"
        f" > {_LOGS}/reward.txt\n"
    ).replace("; then echo 1", " >&2; then echo 1")


def _solve_script(record: TaskRecord) -> str:
    return (
        "#!/bin/bash\n"
        "patch -p1 -d " + shlex.quote(record.workdir) + ' < "$(dirname "$0")/fix.patch"\n'
    )
