"""Record oracle sessions: the real product on real tasks, with an oracle in the model's place.

    python examples/pocket/record.py TASKSET OUT.jsonl [SESSIONS_PER_TASK] [USE]
    python examples/pocket/record.py --trials TASKSET OUT.jsonl BASE=ENV …
    python examples/pocket/record.py --more TASKSET OUT.jsonl BASE=ENV …

The second form takes every bug that the builder tried and a test noticed, before it chose a
balanced set of them: more sessions, the same packages. The third breaks the same functions in
other ways, runs one of the tests that noticed a bug there, and where it fails too records the
session up to the right edit.

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


def trial_jobs(taskset: Path, base: str) -> list[dict]:
    """One session for every killed trial of a package, in random order."""
    from dataclasses import asdict

    from insitu.corpus.oracle import Rates, draw_manner
    from insitu.tasks.mutate import candidate_edits, reverse
    from insitu.types import Edit

    rng = random.Random(base)
    found = []
    for line in (taskset / "work" / base / "trials.jsonl").read_text().splitlines():
        for text in json.loads(json.loads(line)["trials"]):
            trial = json.loads(text)
            if trial["status"] != "killed":
                continue
            source = (taskset / "bases" / base / trial["path"]).read_text()
            bug, first = Edit(**trial["edit"]), trial["first_line"]
            legal = candidate_edits(source, trial["path"], first, trial["last_line"])
            edits = [e for e, _ in legal if e.line != bug.line]
            near = [e for e in edits if abs(e.line - bug.line) <= 2]
            manner = draw_manner(Rates(), rng)
            pools = [near if near and rng.random() < 0.5 else edits for _ in range(manner.wrong)]
            found.append(
                {
                    "task_id": f"{base}:{trial['qualname']}:{bug.line}:{bug.old}:{bug.new}",
                    "layers": [str(taskset / "bases" / base), ""],
                    "bug": asdict(bug),
                    "issue": f"`{trial['qualname']}` in {bug.path}:{first} is broken: "
                    f"{trial['failing'][0]} fails. Fix it; leave the tests alone.",
                    "path": bug.path,
                    "line": first,
                    "family": trial["family"],
                    "repair": asdict(reverse(bug)),
                    "wrong": [asdict(rng.choice(pool)) for pool in pools if pool],
                    "manner": asdict(manner),
                }
            )
    rng.shuffle(found)
    return found


def more_jobs(taskset: Path, base: str, each: int = 8) -> list[dict]:
    """Up to `each` further bugs for every function of a package in which a test noticed one."""
    from dataclasses import asdict

    from insitu.corpus.oracle import Manner
    from insitu.tasks.mutate import candidate_edits, reverse

    rng = random.Random(f"more {base}")
    known: dict[tuple[str, str, int, int], dict[str, set]] = {}
    for line in (taskset / "work" / base / "trials.jsonl").read_text().splitlines():
        for text in json.loads(json.loads(line)["trials"]):
            t = json.loads(text)
            if t["status"] == "killed":
                key = (t["path"], t["qualname"], t["first_line"], t["last_line"])
                entry = known.setdefault(key, {"tests": set(), "done": set()})
                entry["tests"] |= set(t["failing"][:3])
                entry["done"].add((t["edit"]["line"], t["edit"]["old"], t["edit"]["new"]))
    found = []
    for (path, name, first, last), entry in sorted(known.items()):
        legal = candidate_edits((taskset / "bases" / base / path).read_text(), path, first, last)
        fresh = [(e, f) for e, f in legal if (e.line, e.old, e.new) not in entry["done"]]
        families = sorted({f for _, f in fresh})
        for _ in range(each if families else 0):
            family = rng.choice(families)
            bug = rng.choice([e for e, f in fresh if f == family])
            test = rng.choice(sorted(entry["tests"]))
            found.append(
                {
                    "task_id": f"{base}:{name}:{bug.line}:{bug.old}:{bug.new}",
                    "layers": [str(taskset / "bases" / base), ""],
                    "bug": asdict(bug),
                    "issue": f"`{name}` in {path}:{first} is broken: {test} fails. "
                    "Fix it; leave the tests alone.",
                    "path": path,
                    "line": first,
                    "family": family,
                    "repair": asdict(reverse(bug)),
                    "wrong": [],
                    "manner": asdict(Manner()),
                    "short": True,
                }
            )
    rng.shuffle(found)
    return found


class Teacher:
    """Stands where mender's API client stands."""

    def __init__(self, oracle, *, short: bool = False) -> None:
        self.oracle, self.unscored, self.short = oracle, [], short

    def chat(self, messages, _tools):
        """The oracle's next tool call as an assistant's message."""
        result = messages[-1]["content"] if messages[-1]["role"] == "tool" else ""
        action = self.oracle.next(result)
        if action is None:
            raise EOFError("the oracle has nothing more to say")
        if not action.taught:
            self.unscored.append(len(messages))
        self.messages = messages
        function = {
            "name": action.tool,
            "arguments": json.dumps(action.arguments, ensure_ascii=False),
        }
        call = {"id": f"call_{len(messages)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        if self.short and action.tool == "run_tests" and len(messages) > 2:
            messages.append(message)
            raise EOFError("what the test says then is not recorded")
        return message


def work(jobs_file: Path, out: Path) -> None:
    """In the task's environment: run mender on every job."""
    scratch = Path(tempfile.mkdtemp())
    with out.open("w") as f:
        for job in json.loads(jobs_file.read_text()):
            base = Path(job["layers"][0])
            root = scratch / base.name
            if not root.exists():
                shutil.copytree(base, root, symlinks=True)
            file = root / job["path"]
            if "bug" in job:
                _break(file, **job["bug"])
            else:
                shutil.copyfile(Path(job["layers"][1]) / job["path"], file)
            session = _session(job, root)
            if not (job.get("short") and session["passed"]):
                f.write(json.dumps(session) + "\n")
                f.flush()
            shutil.copyfile(base / job["path"], file)
    shutil.rmtree(scratch, ignore_errors=True)


def _break(file: Path, path: str, line: int, old: str, new: str, column: int) -> None:
    lines = file.read_text().split("\n")
    text = lines[line - 1]
    if not text.startswith(old, column):
        raise ValueError(f"{path}:{line} has changed")
    lines[line - 1] = text[:column] + new + text[column + len(old) :]
    file.write_text("\n".join(lines))


def _session(job: dict, root: Path) -> dict:
    from mender import agent, testing, tools

    from insitu.corpus.oracle import Facts, Manner, Oracle
    from insitu.types import Edit

    facts = Facts(
        path=job["path"],
        line=job["line"],
        repair=Edit(**job["repair"]),
        wrong=tuple(Edit(**e) for e in job["wrong"]),
    )
    teacher = Teacher(Oracle(facts, Manner(**job["manner"])), short=job.get("short", False))
    test = job["issue"].split(" is broken: ")[1].split(" fails")[0]
    hands = tools.Tools(root, lambda: testing.run(root, test), 5)
    with contextlib.suppress(EOFError):
        agent.run(teacher, hands, job["issue"], 16)
    reports = [m["content"] for m in teacher.messages if m["role"] == "tool"]
    return {
        "task_id": job["task_id"],
        "messages": teacher.messages,
        "unscored": teacher.unscored,
        "family": job["family"],
        "passed": "passed" in reports,
    }


def main() -> None:
    """The command line."""
    if sys.argv[1] == "--work":
        work(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    if sys.argv[1] in ("--trials", "--more"):
        taskset, out = Path(sys.argv[2]).resolve(), Path(sys.argv[3])
        pairs = (pair.split("=") for pair in sys.argv[4:])
        listed = trial_jobs if sys.argv[1] == "--trials" else more_jobs
        todo = [(str(taskset / "envs" / env), listed(taskset, base)) for base, env in pairs]
    else:
        taskset, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
        sessions = int(sys.argv[3]) if len(sys.argv) > 3 else 4
        todo = list(jobs(taskset, sessions, sys.argv[4] if len(sys.argv) > 4 else "").items())
    parts = [_record(env, some, out.with_suffix(f".{i}")) for i, (env, some) in enumerate(todo)]
    with out.open("w") as f:
        for part in parts:
            f.write(part.read_text())
            part.unlink()


def _record(env: str, jobs: list[dict], part: Path) -> Path:
    """Run a worker in a task environment; the file with its sessions."""
    todo = part.with_suffix(f"{part.suffix}-jobs")
    todo.write_text(json.dumps(jobs))
    paths = f"{ROOT / 'src'}:{ROOT / 'examples' / 'mender'}"
    subprocess.run(
        [f"{env}/bin/python", "-P", __file__, "--work", str(todo), str(part)],
        check=True,
        env={"PYTHONPATH": paths, "PATH": os.defpath, "PYTHONHASHSEED": "0"},
    )
    todo.unlink()
    return part


if __name__ == "__main__":
    main()
