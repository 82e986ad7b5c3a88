"""A small run that is killed (SIGKILL) at random lines of the ledger's code until it ends.

`python -m tests.unit.ledger.killed_run FOLDER SEED KILLS`: a controller runs groups of two
episodes, plans steps of two groups with a pretend trainer, and is killed KILLS times; each
successor recovers and goes on. The trainer's state is a digest over the batches it took, saved
in a checkpoint every second step: a group trained twice, lost or in another order changes it.
"""

import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from insitu.kit import atomic, digest
from insitu.ledger import episodes, ledger, recovery, run_folder
from insitu.types import Group, PolicyVersion, StepReport
from tests.unit.ledger.made import make_episode

STEPS, GROUPS_PER_STEP, SIZE, CHECKPOINT_EVERY = 6, 2, 2, 2
_WATCHED = {m.__file__ for m in (atomic, episodes, ledger, recovery, run_folder)} | {__file__}


def kill_after(lines: int) -> None:
    left = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in _WATCHED:
            return None
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


class Trainer:
    """Its state is the digest of all batches so far; a checkpoint is a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trainer.json"
        saved = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.step, self.state = saved.get("step", 0), saved.get("state", "")

    def take(self, batch: list[Group]) -> StepReport:
        self.step += 1
        parts = [self.state, *(e.episode_id for g in batch for e in g.episodes)]
        self.state = digest.digest_bytes(*(p.encode() for p in parts))
        loss = int(self.state[:8], 16) / 2**32
        if self.step % CHECKPOINT_EVERY == 0:
            atomic.write_atomic(self.path, json.dumps({"step": self.step, "state": self.state}))
        return StepReport(step=self.step, version=self.step, loss=loss)


def control(folder: Path) -> None:
    run = run_folder.RunFolder(folder)
    if not run.exists:
        run_folder.RunFolder.create(folder, "[run]\n")
    with run.lock(), ledger.Ledger(run.ledger, write=True) as book:
        trainer = Trainer(folder)
        store = episodes.EpisodeStore(run.episodes)
        # A checkpoint may be one step ahead of the ledger: the report is written then.
        while (last := len(book.steps("done"))) < trainer.step:
            book.finish_step(
                StepReport(step=last + 1, version=last + 1, loss=saved_loss(trainer)),
                started_at=1.0,
            )
        book.rewind(trainer.step)
        found = recovery.recover(book, store)
        for _ in found.planned:
            train(book, store, trainer)
        for group in found.open:
            finish_group(book, store, group.row.group_id, group)
        while trainer.step < STEPS:
            if len(book.groups("ready")) < GROUPS_PER_STEP:
                name = f"g{len(book.groups())}"
                book.open_group(name, task_id="t1", size=SIZE)
                finish_group(book, store, name, None)
            else:
                ready = [g.group_id for g in book.groups("ready")[:GROUPS_PER_STEP]]
                book.plan_step(trainer.step + 1, ready)
                train(book, store, trainer)


def saved_loss(trainer: Trainer) -> float:
    return int(trainer.state[:8], 16) / 2**32


def finish_group(book, store, name: str, known) -> None:
    done = {e.attempt: e for e in known.done} if known else {}
    for attempt in range(SIZE):
        if attempt in done:
            continue
        tries = known.started.get(attempt, 0) if known else 0
        episode_id = f"{name}-{attempt}-r{tries}"
        book.start_episode(episode_id, group_id=name, task_id="t1", attempt=attempt, seed=7)
        done[attempt] = make_episode(episode_id, group_id=name, attempt=attempt)
        store.write_episode(done[attempt])
        book.end_episode(done[attempt])
    store.write_group(
        Group(group_id=name, task_id="t1", episodes=tuple(done[i] for i in range(SIZE)))
    )
    book.ready_group(name)


def train(book, store, trainer: Trainer) -> None:
    step = book.steps("planned")[0]
    report = trainer.take([store.read_group(g) for g in step.group_ids])
    book.finish_step(report, started_at=1.0)
    version = PolicyVersion(number=report.version, digest=trainer.state, path="w", step=report.step)
    book.add_version(version)


def main(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            if attempt < kills:
                kill_after(rng.randint(1, 2500))
            code = 1
            try:
                control(folder)
                code = 0
            finally:
                sys.settrace(None)
                traceback.print_exc() if code else None
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit("a controller failed")
        sys.stdout.write("ended\n" if os.WIFEXITED(status) else "killed\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
