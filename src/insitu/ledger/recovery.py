"""What to do with a run whose controller was killed: make the ledger whole, and say what is open.

`recover` may itself be killed and run again: each thing it does is one transaction or one
removal, and what is done already is found done.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from insitu.kit.log import get_log
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.rows import GroupRow, StepRow
from insitu.types import CorruptError, Episode, EpisodeEnd

CAUSE = "controller died"
"""The fault of episodes that ran when their controller was killed."""

_log = get_log("ledger")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenGroup:
    """A group to go on with.

    Example: of four attempts two had ended and one was running:
    `OpenGroup(row=row, done=(e0, e1), started={0: 1, 1: 1, 2: 1})`.
    """

    row: GroupRow
    done: tuple[Episode, ...]
    """Episodes that have ended otherwise than by a fault, in order of attempt."""
    started: dict[int, int] = field(default_factory=dict)
    """How many episodes each attempt has had, so that the next one gets a new name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """How a run stands when its next controller begins."""

    interrupted: tuple[str, ...]
    """Episodes ended now as faults; their attempts are to be repeated."""
    open: tuple[OpenGroup, ...]
    """Groups to go on with, those of evaluations included."""
    discarded: tuple[GroupRow, ...]
    """Groups given up, because tokens of theirs are gone; their tasks need another group."""
    ready: tuple[GroupRow, ...]
    """Groups that wait for a batch, in the order in which they became ready."""
    planned: tuple[StepRow, ...]
    """Steps still to be taken, with their batches."""


def recover(ledger: Ledger, store: EpisodeStore) -> Recovery:
    """Make the ledger whole after its controller died; a ledger that is whole stays as it is.

    Call it under the run's lock, before anything is started, and after `Ledger.rewind` where the
    trainer resumes from a checkpoint.

    Raises:
        CorruptError: the file of a group in a planned batch is missing.
    """
    store.sweep()
    running = {row.episode_id for row in ledger.episodes(running=True)}
    for group in _open_groups(ledger):
        _finish_written(ledger, store, group, running)
    interrupted = ledger.interrupt(cause=CAUSE)
    ready, lost = _split(ledger.groups("ready"), lambda g: store.has_group(g.group_id))
    going_on, halved = _split(_open_groups(ledger), lambda g: _has_tokens(ledger, store, g))
    for group in (*lost, *halved):
        _log.warning("group %s: tokens of it are gone, discarded", group.group_id)
        ledger.discard_group(group.group_id, "tokens missing")
        store.drop_open(group.group_id)
    planned = ledger.steps("planned")
    for group_id in (g for step in planned for g in step.group_ids):
        if not store.has_group(group_id):
            raise CorruptError(
                f"{store.path(group_id)}: missing, but its step is planned",
                remedy="restore the file, or start a new run",
            )
    return Recovery(
        interrupted=interrupted,
        open=tuple(_open_group(ledger, store, group) for group in going_on),
        discarded=(*lost, *halved),
        ready=tuple(ready),
        planned=tuple(planned),
    )


def _split(
    groups: list[GroupRow], keep: Callable[[GroupRow], bool]
) -> tuple[list[GroupRow], list[GroupRow]]:
    kept = [group for group in groups if keep(group)]
    return kept, [group for group in groups if group not in kept]


def _open_groups(ledger: Ledger) -> list[GroupRow]:
    evals = [row.eval_id for row in ledger.evals()]
    return [group for name in ("", *evals) for group in ledger.groups("open", eval_id=name)]


def _finish_written(
    ledger: Ledger, store: EpisodeStore, group: GroupRow, running: set[str]
) -> None:
    """Episodes and groups whose files were written just before the controller died."""
    started = {row.episode_id for row in ledger.episodes(group_id=group.group_id)}
    whole = False
    episodes = store.read_open(group.group_id)
    if store.has_group(group.group_id):
        written = store.read_group(group.group_id).episodes
        # After a power cut the ledger may have forgotten an episode; then it runs again.
        whole = all(episode.episode_id in started for episode in written)
        episodes = written if whole else episodes
    for episode in episodes:
        if episode.episode_id in running and episode.end is not EpisodeEnd.FAULT:
            ledger.end_episode(episode)
    if whole:
        ledger.ready_group(group.group_id)
        store.drop_open(group.group_id)


def _has_tokens(ledger: Ledger, store: EpisodeStore, group: GroupRow) -> bool:
    """Whether each episode that counts has its file."""
    kept = {episode.episode_id for episode in store.read_open(group.group_id)}
    return all(
        row.episode_id in kept
        for row in ledger.episodes(group_id=group.group_id)
        if row.outcome != EpisodeEnd.FAULT
    )


def _open_group(ledger: Ledger, store: EpisodeStore, group: GroupRow) -> OpenGroup:
    started: dict[int, int] = {}
    rows = ledger.episodes(group_id=group.group_id)
    for row in rows:
        started[row.attempt] = started.get(row.attempt, 0) + 1
    counted = {row.episode_id for row in rows if row.outcome != EpisodeEnd.FAULT}
    done = tuple(e for e in store.read_open(group.group_id) if e.episode_id in counted)
    return OpenGroup(row=group, done=done, started=started)
