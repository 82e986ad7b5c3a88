"""A gateway on a real Unix socket before an engine that plays back a plan."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from insitu.engine.base import EngineStatus
from insitu.gateway.recorder import Recording
from insitu.gateway.server import Gateway
from insitu.render.renderer import TokenRenderer
from insitu.types import PolicyVersion, Sampling, TokenRequest, TokenResult
from tests.pocket import make_tokenizer

Plan = Callable[[TokenRequest, str], str]


def call_text(name: str, **arguments: Any) -> str:
    """What a model samples to call a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


class PlannedEngine:
    """Says what `plan(request, prompt text)` returns; each token's version counts up."""

    def __init__(self, renderer: TokenRenderer, plan: Plan) -> None:
        self.renderer, self.plan = renderer, plan
        self.requests: list[TokenRequest] = []
        self.cancelled = 0
        self.hold: asyncio.Event | None = None

    async def generate(self, request: TokenRequest) -> TokenResult:
        self.requests.append(request)
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        text = self.plan(request, self.renderer.decode(request.prompt_ids))
        ids = self.renderer.encode(text, marked=True) + self.renderer.stop_ids[:1]
        cut = ids[: request.sampling.max_tokens]
        base = 1000 * len(self.requests)
        return TokenResult(
            token_ids=cut,
            logprobs=tuple(-0.5 - i / 1024 for i in range(len(cut))),
            versions=tuple(base + i for i in range(len(cut))),
            finish="stop" if cut == ids else "length",
        )

    async def load(self, policy: PolicyVersion) -> float:
        return 0.0

    async def status(self) -> EngineStatus:
        raise NotImplementedError

    async def close(self) -> None:
        return


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> TokenRenderer:
    return TokenRenderer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Desk:
    """One open session and a client that has its key."""

    def __init__(self, gateway: Gateway, engine: PlannedEngine, client: httpx.AsyncClient) -> None:
        self.gateway, self.engine, self.client = gateway, engine, client
        self.key = ""

    def open(self, episode: str = "ep", **options: Any) -> str:
        settings = {"sampling": Sampling(max_tokens=64), "seed": 7, "max_calls": 100} | options
        self.key = self.gateway.open(episode, **settings)
        return self.key

    def close(self) -> Recording:
        return self.gateway.close(self.key)

    async def post(self, messages: list[dict[str, Any]], **body: Any) -> httpx.Response:
        return await self.raw(json.dumps({"model": "m", "messages": messages} | body).encode())

    async def raw(self, content: bytes, **headers: str) -> httpx.Response:
        auth = {"authorization": f"Bearer {self.key}"}
        return await self.client.post(
            "/v1/chat/completions", content=content, headers=auth | headers
        )

    async def say(self, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """Send, check the status, append the answer to `messages` as a product would."""
        response = await self.post(messages, **body)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        messages.append({k: v for k, v in message.items() if v is not None})
        return message


OpenDesk = Callable[..., AbstractAsyncContextManager[Desk]]


@pytest.fixture
def desk(renderer: TokenRenderer, tmp_path: Path) -> OpenDesk:
    """`async with desk(plan, **gateway options) as d`, with one session open."""

    @asynccontextmanager
    async def opened(plan: Plan, **options: Any) -> AsyncIterator[Desk]:
        engine = PlannedEngine(renderer, plan)
        settings = {"model_name": "pocket", "context": 2048} | options
        gateway = Gateway(engine, renderer, **settings)
        path = tmp_path / "g.sock"
        transport = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
        async with (
            gateway.serve(path),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            made = Desk(gateway, engine, client)
            made.open()
            yield made

    return opened
