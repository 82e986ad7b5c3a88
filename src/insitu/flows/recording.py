"""Episodes → ledger, as they start and end."""

import time

from insitu.flows.services import Services
from insitu.rollout.episode import Attempt
from insitu.types import Episode, EpisodeEnd, Fault


class Recorder:
    """Notes each episode's start before anything runs, and its end with its tokens, once."""

    def __init__(self, services: Services, *, size: int, eval_id: str = "") -> None:
        self._ledger, self._episodes = services.ledger, services.episodes
        self._size, self._eval_id = size, eval_id
        self._known = {g.group_id for g in self._ledger.groups(eval_id=eval_id)}

    def started(self, attempt: Attempt) -> None:
        """An attempt is about to run."""
        if attempt.group_id not in self._known:
            self._ledger.open_group(
                attempt.group_id,
                task_id=attempt.task.task_id,
                size=self._size,
                eval_id=self._eval_id,
            )
            self._known.add(attempt.group_id)
        self._ledger.start_episode(
            attempt.episode_id,
            group_id=attempt.group_id,
            task_id=attempt.task.task_id,
            attempt=attempt.index,
            seed=attempt.seed,
        )

    def ended(self, episode: Episode) -> None:
        """An attempt has ended; its tokens are kept before the ledger says so."""
        fault = None
        if episode.end is EpisodeEnd.FAULT:
            kind, _, cause = episode.note.partition(": ")
            boundary = kind.removesuffix("Error").lower()
            fault = Fault(boundary=boundary, cause=cause[:200], at=time.time())
        else:
            self._episodes.write_episode(episode)
        self._ledger.end_episode(episode, fault=fault)

    def discarded(self, group_id: str, reason: str) -> None:
        """A group will not be trained."""
        self._ledger.discard_group(group_id, reason)
        self._episodes.drop_open(group_id)
