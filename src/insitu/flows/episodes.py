"""`insitu episodes`: one episode of a run → what other tools read."""

import difflib
from pathlib import Path
from typing import Any

from insitu.config.load import load
from insitu.gateway.atif import trajectory
from insitu.gateway.dialects.table import ROUTES, dialect_at
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.product.config import read_product
from insitu.types import Episode, UsageError

_SHOWN = 3


def episode_atif(run: Path, episode_id: str) -> dict[str, Any]:
    """The episode as an ATIF trajectory, its end, reward and signals in the root's `extra`.

    Raises:
        UsageError: no such run or episode, or one without tokens; or the run's product is gone.
    """
    folder = RunFolder.open(run)
    episode = _episode(folder, episode_id)
    product = read_product(Path(load(folder.config).product.file))
    document = trajectory(
        episode.calls,
        dialect_at(ROUTES[product.dialect]),
        session_id=episode.episode_id,
        agent_name=product.name,
        agent_version="unknown",
        model_name="policy",
        extra={
            "task": episode.task_id,
            "end": episode.end.value,
            "reward": episode.reward.value,
            "formula": episode.reward.formula,
            "signals": {signal.name: signal.value for signal in episode.signals},
        },
    )
    if document is None:
        raise UsageError(f"{episode_id}: nothing was sampled in it", remedy="name another episode")
    return document


def _episode(folder: RunFolder, episode_id: str) -> Episode:
    with Ledger(folder.ledger) as ledger:
        rows = {row.episode_id: row for row in ledger.episodes()}
    if episode_id not in rows:
        near = difflib.get_close_matches(episode_id, rows, _SHOWN, 0.3) or list(rows)[:_SHOWN]
        raise UsageError(
            f"{folder.path}: no episode {episode_id}",
            remedy=f"name one, e.g. {', '.join(near)}" if near else "wait until one has begun",
        )
    group_id, store = rows[episode_id].group_id, EpisodeStore(folder.episodes)
    whole = store.has_group(group_id)
    kept = store.read_group(group_id).episodes if whole else store.read_open(group_id)
    for episode in kept:
        if episode.episode_id == episode_id:
            return episode
    raise UsageError(
        f"{folder.path}: no tokens are kept of episode {episode_id}"
        f" ({rows[episode_id].outcome or 'it still runs'})",
        remedy="name one that ended, of a group that was not discarded",
    )
