"""The gateway: where a product's requests arrive, and leave as exact tokens.

Mechanisms and promises:
- A key is a session is an episode. It is random, compared in constant time, and refused once
  the session is closed. Neither keys nor bodies are ever logged.
- Each request finds its place in the session's tree of calls (`tree`), which gives its prompt;
  the engine samples (`relay`); the call is recorded before the product sees the answer.
- A request that repeats one in flight or just answered gets the same answer, nothing is
  sampled twice. When nobody waits for a call any more it is cancelled.
- A limit that is reached is an outcome: the product gets an error of its dialect and the
  recording says why. A fault of the engine is waited out, then reported as a fault.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from insitu.engine.base import Engine
from insitu.gateway import serving
from insitu.gateway.dialects.base import Ask, Dialect, Reply, RequestError
from insitu.gateway.dialects.table import DIALECTS, dialect_at
from insitu.gateway.recorder import NOTHING_SAMPLED, Recording, before_stop, cut_at_stop
from insitu.gateway.relay import DoesNotFitError, Relay
from insitu.gateway.sessions import Flight, SamplingPolicy, Session
from insitu.gateway.tree import Placement
from insitu.kit.log import get_log
from insitu.render.renderer import TokenRenderer
from insitu.render.turns import ParsedTurn
from insitu.types import Call, EngineError, Sampling, TokenRequest, TokenResult, UsageError

_LOG = get_log("gateway")
_RETRY_AFTER_S: Final = 5.0
_DEFAULT_ROUTE: Final = next(iter(DIALECTS))


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayLimits:
    """Times and sizes of a gateway."""

    patience_s: float = 90.0
    """How long a call waits for an engine that is away (an engine restarts meanwhile)."""
    attempt_s: float = 600.0
    """How long one generation may take before the engine counts as stuck."""
    body_bytes: int = 32 * 1024 * 1024
    """Largest request."""
    keepalive_s: float = 10.0
    """Seconds between comments on a stream that waits for its answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One admitted call on its way through the engine."""

    session: Session
    dialect: Dialect
    ask: Ask
    place: Placement
    draft: Call
    sampling: Sampling


class Gateway:
    """Serves one policy's engine to products, one session per episode.

    Example:
        gateway = Gateway(engine, TokenRenderer(folder), model_name="pocket", context=1024)
        async with gateway.serve(Path("gateway.sock")):
            key = gateway.open("ep-1", sampling=Sampling(), seed=7, max_calls=16)
            ...  # the product calls /v1/chat/completions with this key
            recording = gateway.close(key)
    """

    def __init__(
        self,
        engine: Engine,
        renderer: TokenRenderer,
        *,
        model_name: str,
        context: int,
        sampling_policy: SamplingPolicy = "override",
        limits: GatewayLimits | None = None,
    ) -> None:
        self.limits = limits or GatewayLimits()
        self._relay = Relay(
            engine, patience_s=self.limits.patience_s, attempt_s=self.limits.attempt_s
        )
        self._renderer = renderer
        self._model_name = model_name
        self._context = context
        self._policy: SamplingPolicy = sampling_policy
        self._sessions: dict[bytes, tuple[str, Session]] = {}
        self.app = Starlette(
            routes=[
                *(Route(route, self._complete, methods=["POST"]) for route in DIALECTS),
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._model),
                Route("/health", self._health),
                Route("/{path:path}", self._unknown, methods=["GET", "POST", "PUT", "DELETE"]),
            ]
        )

    def open(self, episode_id: str, *, sampling: Sampling, seed: int, max_calls: int) -> str:
        """Open a session and return its key; the key is the only way to it."""
        key = f"sk-{secrets.token_urlsafe(32)}"
        session = Session(episode_id, sampling=sampling, seed=seed, max_calls=max_calls)
        self._sessions[_key_digest(key)] = key, session
        return key

    def close(self, key: str) -> Recording:
        """End a session: calls in flight are cancelled, the key is refused from now on.

        Raises:
            UsageError: no open session has this key.
            GatewayError: the calls could not be stitched (a fault, nothing may be trained).
        """
        _, session = self._sessions.pop(_key_digest(key), (key, None))
        if session is None:
            raise UsageError("no open session has this key")
        return session.close()

    @asynccontextmanager
    async def serve(self, socket: Path) -> AsyncIterator[None]:
        """Serve on a Unix socket until the block ends; the socket file is removed then."""
        try:
            async with serving.serve_app(self.app, serving.unix_listener(socket)):
                yield
        finally:
            socket.unlink(missing_ok=True)

    @asynccontextmanager
    async def serve_loopback(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on 127.0.0.1 until the block ends; gives the base URL, with `/v1`."""
        listener = serving.loopback_listener(port)
        bound = listener.getsockname()[1]
        async with serving.serve_app(self.app, listener):
            yield f"http://127.0.0.1:{bound}/v1"

    # Routes

    async def _complete(self, request: Request) -> Response:
        dialect = dialect_at(request.scope["path"])
        try:
            session = self._session(dialect.key(request.headers))
            body = await self._body(request)
            ask = dialect.read(body)
            flight = self._flight(session, dialect, ask, body, _is_retry(request)).join()
        except RequestError as problem:
            return _refusal(dialect, problem)
        except ClientDisconnect:
            return Response(status_code=499)
        handed_over = False
        try:
            wait_s = self.limits.keepalive_s if ask.stream else None
            if await _landed(flight, request, wait_s):
                return _response(dialect, ask, flight.answer())
            handed_over = True
            return StreamingResponse(
                self._slow_events(dialect, ask, flight), media_type="text/event-stream"
            )
        except RequestError as problem:
            return _refusal(dialect, problem)
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            if not handed_over:
                flight.leave()

    async def _models(self, request: Request) -> Response:
        return self._with_key(request, {"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        return self._with_key(request, self._card())

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "sessions": len(self._sessions)})

    async def _unknown(self, request: Request) -> Response:
        problem = RequestError("not_found", f"no such route: {request.method} {request.url.path}")
        return _refusal(dialect_at(_DEFAULT_ROUTE), problem)

    # A request's way

    def _session(self, key: str) -> Session:
        found, session = self._sessions.get(_key_digest(key), ("", None))
        if session is None or not hmac.compare_digest(found.encode(), key.encode()):
            raise RequestError("bad_key", "the API key is wrong or has expired")
        return session

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_bytes
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise RequestError("too_large", f"the request is larger than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _flight(
        self, session: Session, dialect: Dialect, ask: Ask, body: bytes, retry: bool
    ) -> Flight:
        repeated = session.repeated(body, declared=retry)
        if repeated is not None:
            return repeated
        index = session.admit()
        try:
            place = session.tree.place(ask, self._renderer)
        except Exception as error:  # noqa: BLE001 - a renderer of another project over any messages
            raise _fault(session, error) from None
        room = self._context - len(place.prompt_ids)
        if room < 1:
            raise self._overflow(session, len(place.prompt_ids))
        draft = Call(
            call_id=f"{session.episode_id}.{index}",
            episode_id=session.episode_id,
            index=index,
            prompt_ids=place.prompt_ids,
            result=NOTHING_SAMPLED,
            request=body.decode(),
            response="",
            extends=place.extends,
            break_cause=place.break_cause,
            started_at=time.time(),
        )
        sampling = session.sampling_for(ask, place.prompt_ids, room, self._policy)
        work = _Work(
            session=session,
            dialect=dialect,
            ask=ask,
            place=place,
            draft=draft,
            sampling=sampling,
        )
        return session.launch(draft, self._sample(work))

    async def _sample(self, work: _Work) -> Reply:
        session, draft, began = work.session, work.draft, time.perf_counter()
        request = TokenRequest(
            request_id=draft.call_id,
            session=session.episode_id,
            prompt_ids=draft.prompt_ids,
            sampling=work.sampling,
            stop_ids=self._renderer.stop_ids,
        )
        answered = False
        try:
            result = await self._relay.generate(
                request, lambda cause: session.fault("engine", cause)
            )
            answer = self._recorded(work, draft, result, began)
            answered = True
            return answer
        except EngineError:
            session.stop = "engine_fault"
            raise RequestError(
                "engine_fault", "the model is not available", retry_after_s=_RETRY_AFTER_S
            ) from None
        except DoesNotFitError:
            raise self._overflow(session, len(draft.prompt_ids)) from None
        except Exception as error:  # noqa: BLE001 - whatever broke, the episode counts as a fault
            raise _fault(session, error) from None
        finally:
            if not answered:
                session.unanswered(replace(draft, latency_s=time.perf_counter() - began))

    def _recorded(self, work: _Work, draft: Call, result: TokenResult, began: float) -> Reply:
        result = cut_at_stop(result, work.ask.stop, self._renderer.decode)
        turn = self._turn(work.ask, result, draft.prompt_ids)
        answer = Reply(
            call_id=draft.call_id,
            model=work.ask.model or self._model_name,
            turn=turn,
            finish="length" if result.finish == "length" else "stop",
            prompt_tokens=len(draft.prompt_ids),
            sampled_tokens=len(result.token_ids),
            cached_tokens=result.cached_tokens,
            version=result.versions[-1] if result.versions else -1,
            created=int(draft.started_at),
        )
        call = replace(
            draft,
            result=result,
            response=work.dialect.answer(answer).decode(),
            latency_s=time.perf_counter() - began,
        )
        work.session.record(call, work.place, work.dialect.message(turn))
        return answer

    def _turn(self, ask: Ask, result: TokenResult, prompt_ids: tuple[int, ...]) -> ParsedTurn:
        turn = self._renderer.parse(result.token_ids, prompt_ids)
        if ask.stop:
            turn = replace(turn, content=before_stop(turn.content, ask.stop))
        if ask.calls_allowed is None or len(turn.tool_calls) <= ask.calls_allowed:
            return turn
        content = turn.content
        if ask.calls_allowed == 0:
            ids = [i for i in result.token_ids if i not in self._renderer.stop_ids]
            content = self._renderer.decode(ids)
        return replace(turn, content=content, tool_calls=turn.tool_calls[: ask.calls_allowed])

    async def _slow_events(
        self, dialect: Dialect, ask: Ask, flight: Flight
    ) -> AsyncIterator[bytes]:
        try:
            while not flight.task.done():
                yield b": keep-alive\n\n"
                await asyncio.wait({flight.task}, timeout=self.limits.keepalive_s)
            for event in dialect.stream(flight.answer(), ask):
                yield event
        except RequestError as problem:
            yield b"data: %b\n\n" % dialect.error(problem)[1]
        finally:
            flight.leave()

    def _overflow(self, session: Session, prompt: int) -> RequestError:
        session.stop = "context_limit"
        return RequestError(
            "context_limit",
            f"This model's maximum context length is {self._context} tokens. "
            f"However, your messages resulted in {prompt} tokens.",
            param="messages",
        )

    def _with_key(self, request: Request, body: dict[str, object]) -> Response:
        dialect = dialect_at(_DEFAULT_ROUTE)
        try:
            self._session(dialect.key(request.headers))
        except RequestError as problem:
            return _refusal(dialect, problem)
        return JSONResponse(body)

    def _card(self) -> dict[str, object]:
        return {"id": self._model_name, "object": "model", "created": 0, "owned_by": "insitu"}


def _fault(session: Session, error: Exception) -> RequestError:
    """Note a fault of the gateway itself; the text sent says nothing of it."""
    _LOG.error("%s: %s", session.episode_id, type(error).__name__, exc_info=error)
    session.stop = "engine_fault"
    session.fault("gateway", f"{type(error).__name__}: {error}")
    return RequestError("gateway_fault", "the request could not be answered")


def _key_digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _is_retry(request: Request) -> bool:
    """Whether the client says that it sends this request again."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdigit() and int(count) > 0


async def _landed(flight: Flight, request: Request, wait_s: float | None) -> bool:
    """Wait for the flight; False if `wait_s` passed first.

    Raises:
        ClientDisconnect: the client went away.
    """
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({flight.task, gone}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if flight.task.done():
            return True
        if gone.done():
            raise ClientDisconnect
        return False
    finally:
        gone.cancel()


def _response(dialect: Dialect, ask: Ask, answer: Reply) -> Response:
    if ask.stream:
        return Response(b"".join(dialect.stream(answer, ask)), media_type="text/event-stream")
    return Response(dialect.answer(answer), media_type="application/json")


def _refusal(dialect: Dialect, problem: RequestError) -> Response:
    status, body = dialect.error(problem)
    headers = {"retry-after": f"{problem.retry_after_s:.0f}"} if problem.retry_after_s else None
    return Response(body, status, headers, media_type="application/json")
