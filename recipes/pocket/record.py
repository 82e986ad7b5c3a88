"""Record oracle sessions: the real product on real tasks, with an oracle in the model's place.

    python recipes/pocket/record.py TASKSET OUT.jsonl [SESSIONS_PER_TASK] [USE] [WORKERS]

Runs in insitu's environment; one worker per task environment runs mender in that environment on
a copy of the workspace. Each line of OUT is {"task_id", "messages", "unscored", "family", "passed"}.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def jobs(taskset: Path, sessions: int, use: str) -> dict[str, list[dict]]:
    """Sessions to record, by task environment."""
    from dataclasses import asdict

    from insitu.corpus.oracle import Rates, draw_manner
    from insitu.tasks.mutate import candidate_edits
    from insitu.tasks.read import read_record, read_task

    found: dict[str, list[dict]] = {}
    for folder in sorted((taskset / "tasks").iterdir()):
        record = read_record(folder)
        if use and record.use != use:
            continue
        task = read_task(folder)
        rng = random.Random(record.task_id)
        source = (Path(task.layers[-1]) / record.path).read_text()
        legal = candidate_edits(source, record.path, record.first_line, record.last_line)
        edits = [e for e, _ in legal if e != record.fix]
        here = [e for e in edits if abs(e.line - record.fix.line) <= 1]
        for _ in range(sessions):
            manner = draw_manner(Rates(), rng)
            wrong = []
            for _ in range(manner.wrong):
                pool = here if here and rng.random() < 0.4 else edits
                wrong += [rng.choice(pool)] if pool else []
            job = {
                "task_id": record.task_id,
                "layers": list(task.layers),
                "issue": task.instruction,
                "path": record.path,
                "line": record.first_line,
                "family": record.family,
                "repair": asdict(record.fix),
                "wrong": [asdict(e) for e in wrong],
                "manner": asdict(manner),
            }
            found.setdefault(task.env_path, []).append(job)
    return found


class Teacher:
    """Stands where mender's API client stands."""

    def __init__(self, oracle) -> None:
        self.oracle, self.unscored = oracle, []

    def chat(self, messages, _tools):
        """The oracle's next tool call as an assistant's message."""
        result = messages[-1]["content"] if messages[-1]["role"] == "tool" else ""
        action = self.oracle.next(result)
        if action is None:
            raise EOFError("the oracle has nothing more to say")
        if not action.taught:
            self.unscored.append(len(messages))
        function = {
            "name": action.tool,
            "arguments": json.dumps(action.arguments, ensure_ascii=False),
        }
        call = {"id": f"call_{len(messages)}", "type": "function", "function": function}
        self.messages = messages
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def work(jobs_file: Path, out: Path) -> None:
    """In the task's environment: run mender on every job."""
    from mender import agent, testing, tools

    from insitu.corpus.oracle import Facts, Manner, Oracle
    from insitu.types import Edit

    scratch = Path(tempfile.mkdtemp())
    with out.open("w") as f:
        for job in json.loads(jobs_file.read_text()):
            base, bug = (Path(layer) for layer in job["layers"])
            root = scratch / base.name
            if not root.exists():
                shutil.copytree(base, root, symlinks=True)
            shutil.copytree(bug, root, dirs_exist_ok=True)
            facts = Facts(
                path=job["path"],
                line=job["line"],
                repair=Edit(**job["repair"]),
                wrong=tuple(Edit(**e) for e in job["wrong"]),
            )
            teacher = Teacher(Oracle(facts, Manner(**job["manner"])))
            test = job["issue"].split(" is broken: ")[1].split(" fails")[0]
            hands = tools.Tools(root, lambda r=root, t=test: testing.run(r, t), 5)
            with contextlib.suppress(EOFError):
                agent.run(teacher, hands, job["issue"], 16)
            reports = [m["content"] for m in teacher.messages if m["role"] == "tool"]
            record = {
                "task_id": job["task_id"],
                "messages": teacher.messages,
                "unscored": teacher.unscored,
                "family": job["family"],
                "passed": "passed" in reports,
            }
            f.write(json.dumps(record) + "\n")
            for file in bug.rglob("*"):
                if file.is_file():
                    shutil.copyfile(base / file.relative_to(bug), root / file.relative_to(bug))
    shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """The command line."""
    if sys.argv[1] == "--work":
        work(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    taskset, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    sessions = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    use = sys.argv[4] if len(sys.argv) > 4 else ""
    paths = f"{ROOT / 'src'}:{ROOT / 'examples' / 'mender'}"
    parts = []
    for i, (env, todo) in enumerate(jobs(taskset, sessions, use).items()):
        part = out.with_suffix(f".part{i}")
        todo_file = out.with_suffix(f".jobs{i}")
        todo_file.write_text(json.dumps(todo))
        command = [f"{env}/bin/python", "-P", __file__, "--work", str(todo_file), str(part)]
        subprocess.run(
            command,
            check=True,
            env={"PYTHONPATH": paths, "PATH": os.defpath, "PYTHONHASHSEED": "0"},
        )
        parts.append(part)
        todo_file.unlink()
    with out.open("w") as f:
        for part in parts:
            f.write(part.read_text())
            part.unlink()


if __name__ == "__main__":
    main()
