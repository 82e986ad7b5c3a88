"""One episode's session: its limits, its requests in flight, its record."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Literal

from insitu.gateway.dialects.base import Ask, Reply, RequestError
from insitu.gateway.recorder import Recording, in_order
from insitu.gateway.segments import stitch
from insitu.gateway.tree import CallTree, Placement
from insitu.types import Call, Fault, Sampling

SamplingPolicy = Literal["override", "honour"]
"""What becomes of sampling settings that the product sends: the session's win, or they do."""

_SILENT_REPLAYS: Final = 2
"""How often the latest request, sent again without saying that it is a retry, gets the same
answer; after that the product seems to want another one. Two is the retry count of the
usual client libraries."""


class Flight:
    """One call under way or just answered, with everybody who waits for it."""

    def __init__(self, work: Coroutine[Any, Any, Reply]) -> None:
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(_retrieve)
        self.replays = 0
        self._waiting = 0

    def join(self) -> "Flight":
        """Wait for it too."""
        self._waiting += 1
        return self

    def leave(self) -> None:
        """Wait no longer; without anybody waiting the generation is cancelled."""
        self._waiting -= 1
        if self._waiting == 0 and not self.task.done():
            self.task.cancel()

    def answer(self) -> Reply:
        """The answer of a finished call.

        Raises:
            RequestError: it was refused, failed, or the session was closed.
        """
        if self.task.cancelled():
            raise RequestError("closed", "the session has ended")
        return self.task.result()


class Session:
    """The state behind one key."""

    def __init__(self, episode_id: str, *, sampling: Sampling, seed: int, max_calls: int) -> None:
        self.episode_id = episode_id
        self.sampling = sampling
        self.tree = CallTree()
        self.stop = ""
        self.closed = False
        self._seed = seed
        self._max_calls = max_calls
        self._calls: dict[int, Call] = {}
        self._arrived = 0
        self._answered = 0
        self._running: set[Flight] = set()
        self._flights: dict[bytes, Flight] = {}
        self._latest: Flight | None = None
        self._prompts: Counter[int] = Counter()
        self._faults: list[Fault] = []
        self._replays = 0
        self._overridden: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()

    def repeated(self, body: bytes, *, declared: bool) -> Flight | None:
        """The flight that already answers this very body, if it is a retry of it.

        It is one while the first is in flight, where the client says so (`declared`), and for
        the latest request a few times without a word.
        """
        flight = self._flights.get(_digest(body))
        if flight is None or (flight.task.done() and not _succeeded(flight)):
            return None
        if flight.task.done() and not declared:
            if flight is not self._latest or flight.replays >= _SILENT_REPLAYS:
                return None
            flight.replays += 1
        self._replays += 1
        return flight

    def admit(self) -> int:
        """Let one more call in; its position.

        Raises:
            RequestError: the limit of calls is reached.
        """
        if self._answered + len(self._running) >= self._max_calls:
            self.stop = "turn_limit"
            raise RequestError("turn_limit", f"the limit of {self._max_calls} requests is reached")
        self._arrived += 1
        return self._arrived - 1

    def launch(self, draft: Call, work: Coroutine[Any, Any, Reply]) -> Flight:
        """Start a call that was admitted; `draft` is what stays of it if it is cancelled."""
        body = draft.request.encode()
        self._calls[draft.index] = draft
        self._prompts[hash(draft.prompt_ids)] += 1
        flight = Flight(work)
        self._flights[_digest(body)] = self._latest = flight
        self._running.add(flight)
        flight.task.add_done_callback(lambda _: self._running.discard(flight))
        return flight

    def sampling_for(
        self, ask: Ask, prompt: tuple[int, ...], room: int, policy: SamplingPolicy
    ) -> Sampling:
        """The settings of one call, with what was not followed counted.

        Its seed comes from the session's, the prompt and how often that was sampled before:
        an episode repeats exactly, in whatever order parallel calls arrive.
        """
        ours = self.sampling
        used: dict[str, Any] = {
            "temperature": ours.temperature,
            "top_p": ours.top_p,
            "top_k": ours.top_k,
            "seed": self._call_seed(prompt),
        }
        for name, value in ask.sampling.items():
            if policy == "honour":
                used[name] = value if name in ("temperature", "top_p") else max(0, int(value))
            elif used[name] != value:
                self._overridden[name] += 1
        self._ignored.update(ask.ignored)
        asked = ask.max_tokens or ours.max_tokens
        return Sampling(**used, max_tokens=min(asked, ours.max_tokens, room))

    def record(self, call: Call, place: Placement, answer: Mapping[str, Any]) -> None:
        """Keep an answered call; the message is what a faithful product will send back."""
        if self.closed:
            return
        if self.stop != "turn_limit":
            self.stop = ""
        self._answered += 1
        self._calls[call.index] = call
        self.tree.add(call, place, answer)

    def unanswered(self, call: Call) -> None:
        """Note that a call ended without an answer: asked again, it samples the same."""
        if not self.closed:
            self._calls[call.index] = call
            self._prompts[hash(call.prompt_ids)] -= 1

    def fault(self, boundary: str, cause: str) -> None:
        """Keep a fault of the system."""
        self._faults.append(
            Fault(boundary=boundary, cause=cause, at=time.time(), episode_id=self.episode_id)
        )

    def close(self) -> Recording:
        """End the session: what is in flight is cancelled and recorded as such."""
        self.closed = True
        for flight in self._running:
            flight.task.cancel()
        calls = in_order(tuple(self._calls.values()))
        return Recording(
            episode_id=self.episode_id,
            calls=calls,
            segments=stitch(calls),
            stop=self.stop,
            faults=tuple(self._faults),
            replays=self._replays,
            overridden=dict(self._overridden),
            ignored=dict(self._ignored),
        )

    def _call_seed(self, prompt: tuple[int, ...]) -> int:
        # The hash of a tuple of ints is the same in every CPython process, and much faster
        # than a digest of a long prompt's bytes.
        which = hash(prompt)
        h = hashlib.blake2b(digest_size=8)
        for number in (self._seed, which, self._prompts[which]):
            h.update(number.to_bytes(16, "little", signed=True))
        return int.from_bytes(h.digest(), "little") >> 1


def _retrieve(task: "asyncio.Task[Reply]") -> None:
    """Mark a failure as seen: those who wait get it from `answer`, if anybody still waits."""
    if not task.cancelled():
        task.exception()


def _succeeded(flight: Flight) -> bool:
    return not flight.task.cancelled() and flight.task.exception() is None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
