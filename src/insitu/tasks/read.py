"""Read task folders and task sets."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from insitu.kit.codec import from_json
from insitu.tasks.layers import bug_layer
from insitu.tasks.record import TaskRecord
from insitu.types import Task, TaskError

_AGENT_TIMEOUT_S = 600.0


def read_record(folder: Path) -> TaskRecord:
    """What `insitu.json` of a task folder says. Never show it to the agent.

    Raises:
        TaskError: the file is missing or is not a record.
    """
    path = folder / "insitu.json"
    if not path.is_file():
        raise TaskError(f"{folder} has no insitu.json", remedy="build it with `insitu tasks build`")
    try:
        return from_json(TaskRecord, path.read_bytes())
    except ValidationError as error:
        where = ".".join(str(p) for p in error.errors()[0]["loc"])
        raise TaskError(
            f"{path} is not a task record ({where}: {error.errors()[0]['msg']})",
            remedy="build the task again",
        ) from error


def read_task(folder: Path) -> Task:
    """The task in a folder that insitu built, `<set>/tasks/<task id>`.

    `metadata` holds what a caller may need as text: `import_root`, `path`, `line`, `qualname`,
    `helpful` (`yes` or `no`), `use`, `base`, `licence`, `order`.

    Raises:
        TaskError: something is missing or wrong; names the folder and the remedy.
    """
    folder = folder.resolve()
    table = _table(folder)
    for name, remedy in (
        ("instruction.md", "write what the agent is to do into it"),
        ("tests/test.sh", "a task needs tests that judge it; build it again"),
    ):
        if not (folder / name).is_file():
            raise TaskError(f"{folder} has no {name}", remedy=remedy)
    record = read_record(folder)
    if not record.fail_to_pass:
        raise TaskError(f"{folder} names no failing test", remedy="build the task again")
    taskset = folder.parent.parent
    base, env = taskset / "bases" / record.base, taskset / "envs" / record.env
    for place, what in ((base, "source tree"), (env, "environment")):
        if not place.is_dir():
            raise TaskError(
                f"{folder}: its {what} {place} is gone", remedy="build the task set again"
            )
    return Task(
        task_id=record.task_id,
        folder=str(folder),
        instruction=(folder / "instruction.md").read_text(encoding="utf-8").strip(),
        layers=(str(base), str(bug_layer(taskset, record))),
        workdir=record.workdir,
        env_path=str(env),
        agent_timeout_s=_agent_timeout(folder, table),
        verifier_timeout_s=record.verifier_timeout_s,
        fail_to_pass=record.fail_to_pass,
        pass_to_pass=record.pass_to_pass,
        source=record.base,
        family=record.family,
        digest=record.digest,
        metadata={
            "import_root": record.import_root,
            "path": record.path,
            "line": str(record.first_line),
            "qualname": record.qualname,
            "helpful": "yes" if record.helpful else "no",
            "use": record.use,
            "base": record.base,
            "licence": record.licence,
            "order": str(record.order),
        },
    )


def read_taskset(folder: Path, *, use: str = "") -> list[Task]:
    """All tasks of a set in its balanced order; with `use` those marked so (`rl`, `sft`, `eval`).

    Raises:
        TaskError: there is no set, it holds no such task, or one of them is broken.
    """
    tasks = folder / "tasks"
    if not tasks.is_dir():
        raise TaskError(
            f"{folder} is not a task set: it has no folder tasks",
            remedy="build one with `insitu tasks build`",
        )
    found = [read_task(p) for p in sorted(tasks.iterdir()) if not p.name.startswith(".")]
    kept = [t for t in found if not use or t.metadata["use"] == use]
    if not kept:
        raise TaskError(
            f"{folder} holds no task" + (f" for {use}" if use else ""),
            remedy="build the set again",
        )
    return sorted(kept, key=lambda t: (int(t.metadata["order"]), t.task_id))


def _agent_timeout(folder: Path, table: dict[str, Any]) -> float:
    agent = table.get("agent", {})
    value = agent.get("timeout_sec", _AGENT_TIMEOUT_S) if isinstance(agent, dict) else agent
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise TaskError(
            f"{folder / 'task.toml'}: agent.timeout_sec: {value!r} is no number of seconds",
            remedy="give a number above 0",
        )
    return float(value)


def _table(folder: Path) -> dict[str, Any]:
    path = folder / "task.toml"
    if not path.is_file():
        raise TaskError(
            f"{folder} has no task.toml", remedy="give the folder of a task in Harbor's format"
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path} is not TOML: {error}", remedy="mend the file") from error
    version = str(table.get("schema_version", table.get("version", "")))
    if not version.startswith("1."):
        raise TaskError(f"{path} has schema_version {version!r}", remedy="insitu reads 1.x")
    return table
