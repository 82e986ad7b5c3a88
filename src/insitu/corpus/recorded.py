"""What a run's policy did well, as recorded: its exact tokens."""

from collections.abc import Iterator
from pathlib import Path

from insitu.corpus.tokenset import TokenDocument
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder


def passed_groups(run: Path) -> list[str]:
    """Groups of the run that may be learned from, in the order they were begun.

    Those of evaluations are left out: their tasks are held out.

    Raises:
        UsageError: there is no run, or it has no ledger.
    """
    folder = RunFolder.open(run)
    store = EpisodeStore(folder.episodes)
    with Ledger(folder.ledger) as ledger:
        rows = ledger.groups()  # of the training alone
    return [r.group_id for r in rows if store.has_group(r.group_id)]


def passed_documents(run: Path, group_id: str) -> Iterator[TokenDocument]:
    """The segments of the group's passed episodes, with loss where the policy sampled.

    Raises:
        CorruptError: the group's file is damaged.
    """
    for episode in EpisodeStore(RunFolder(run).episodes).read_group(group_id).episodes:
        if episode.signal("passed") >= 1:
            for segment in episode.segments:
                yield TokenDocument(ids=segment.token_ids, loss=segment.trainable)
