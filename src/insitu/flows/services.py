"""What a run is made of, wired once: engine and trainer processes, gateway, sandboxes, judge."""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from insitu.config.tree import Config
from insitu.engine.client import EngineClient
from insitu.fleet.local import LocalService
from insitu.gateway.dialects.table import ROUTES
from insitu.gateway.server import Gateway
from insitu.kit.atomic import write_atomic
from insitu.kit.codec import to_json
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.ledger import Ledger
from insitu.ledger.run_folder import RunFolder
from insitu.product.config import Product, read_product
from insitu.product.launch import base_url, prepare_product, run_product, sandbox_spec
from insitu.render.renderer import TokenRenderer
from insitu.reward.formula import evaluate
from insitu.reward.signals import NAMES, episode_signals
from insitu.reward.verify import Verifier
from insitu.rollout.episode import EpisodeRunner
from insitu.sandbox.backends import open_backend
from insitu.sandbox.base import SandboxBackend
from insitu.train.client import TrainerClient
from insitu.types import (
    ConfigError,
    CorruptError,
    Fault,
    PolicyVersion,
    Sampling,
    Signal,
    UsageError,
)
from insitu.weights.raw import weight_files
from insitu.weights.store import WeightStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Services:
    """A run's parts, alive while `open_services` lasts."""

    config: Config
    folder: RunFolder
    ledger: Ledger
    episodes: EpisodeStore
    store: WeightStore
    engine: EngineClient
    runner: EpisodeRunner
    trainer: TrainerClient | None
    processes: dict[str, LocalService]

    @property
    def sampling(self) -> Sampling:
        """How the policy is sampled in training."""
        settings = self.config.gateway
        return Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=settings.max_tokens,
        )


@asynccontextmanager
async def open_services(
    config: Config, folder: RunFolder, ledger: Ledger, *, with_trainer: bool
) -> AsyncIterator[Services]:
    """Start everything, give it, and stop everything.

    Raises:
        UsageError: something the recipe names is missing or cannot work here.
        ServiceError: a process did not come up.
    """
    # Everything is tried before the first process starts; each error is one the user can fix.
    product = _product(config)
    _check_reward(config.reward.formula)
    store = open_store(config, folder)
    context, renderer = context_of(config, store), TokenRenderer(Path(store.get(0).path))
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(_sandboxes(config, folder))
        engine, processes = _engine(stack, config, folder, ledger, store)
        trainer = None
        if with_trainer:
            trainer = _trainer(stack, folder, ledger, processes)
        await _start(processes.values())
        gateway = Gateway(
            engine,
            renderer,
            model_name=product.name,
            context=context,
            sampling_policy=config.gateway.sampling,
        )
        socket = folder.socket("gateway")
        await stack.enter_async_context(gateway.serve(socket))
        yield Services(
            config=config,
            folder=folder,
            ledger=ledger,
            episodes=EpisodeStore(folder.episodes),
            store=store,
            engine=engine,
            runner=_runner(config, product, backend, gateway, socket, folder),
            trainer=trainer,
            processes=processes,
        )


async def _start(processes: Iterable[LocalService]) -> None:
    """Start them side by side; the first that does not come up stops the others."""
    starting = [asyncio.create_task(process.start()) for process in processes]
    try:
        await asyncio.gather(*starting)
    finally:
        for each in starting:
            each.cancel()
        await asyncio.gather(*starting, return_exceptions=True)


def _product(config: Config) -> Product:
    """The product as the recipe starts it, prepared."""
    section = config.product
    product = read_product(Path(section.file))
    prepare_product(product)
    changes: dict[str, object] = {"command": (*product.command, *section.arguments)}
    if section.timeout_s:
        changes["timeout_s"] = section.timeout_s
    if product.dialect not in ROUTES:
        raise UsageError(
            f"{section.file}: dialect {product.dialect!r} is not spoken",
            remedy=f"use one of {', '.join(sorted(ROUTES))}",
        )
    return product.model_copy(update=changes)


def _check_reward(formula: str) -> None:
    """Refuse a formula that no episode could be scored by, before the first one runs."""
    evaluate(formula, [Signal(name=name, value=1.0) for name in NAMES])


def open_store(config: Config, folder: RunFolder) -> WeightStore:
    """The run's weight store; a new one begins with the recipe's base policy as version 0."""
    store = WeightStore(folder.weights)
    if store.is_empty:
        if not config.policy.model:
            raise UsageError(
                "the recipe names no base policy", remedy="set policy.model to a model's folder"
            )
        adopt_model(store, config.policy.model)
    return store


def adopt_model(store: WeightStore, model: str, *, number: int = 0) -> PolicyVersion:
    """Make the model in a folder a version of the store, if it can be served.

    Raises:
        UsageError: no model, no tokenizer, or weights that are damaged or of another kind.
    """
    weight_files(Path(model))
    TokenRenderer(Path(model))
    return store.adopt(Path(model), number=number)


def context_of(config: Config, store: WeightStore) -> int:
    """Tokens that a call may hold: the recipe's limit, or what the model was made for.

    Raises:
        ConfigError: the recipe's limit is none that the model can hold.
    """
    given = config.policy.context
    try:
        longest = store.context_of(0)
    except CorruptError as e:
        if given:
            return given
        raise ConfigError(
            f"policy.context: {config.policy.model}/config.json does not say max_position_embeddings",
            remedy="set policy.context to the longest sequence that the model can hold",
        ) from e
    if given and not _FEWEST_TOKENS <= given <= longest:
        raise ConfigError(
            f"policy.context: {given} tokens are more than the model can hold, or too few for a call",
            remedy=f"give {_FEWEST_TOKENS} to {longest}, or 0 for all that the model can hold",
        )
    return given or longest


_FEWEST_TOKENS = 64
"""Less holds no prompt of any product."""


async def unless_given_up(services: Services, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, but stop it when a service has died too often: it could only wait for ever.

    Raises:
        UsageError, ServiceError: a service was given up.
    """
    task = asyncio.create_task(work)
    watchers = [asyncio.create_task(p.given_up()) for p in services.processes.values()]
    try:
        await asyncio.wait({task, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        for watcher in watchers:
            if watcher.done():
                raise watcher.result()
        return await task
    finally:
        for each in (task, *watchers):
            each.cancel()
        await asyncio.gather(task, *watchers, return_exceptions=True)


@asynccontextmanager
async def _sandboxes(config: Config, folder: RunFolder) -> AsyncIterator[SandboxBackend]:
    root = Path(config.sandbox.folder) if config.sandbox.folder else folder.scratch
    backend = open_backend(config.sandbox.backend, root)
    if problems := await backend.preflight():
        raise UsageError(
            f"{backend.name} cannot make sandboxes here: {problems[0]}",
            remedy="see `insitu doctor`",
        )
    await backend.reap()
    try:
        yield backend
    finally:
        await backend.close()


def _runner(
    config: Config,
    product: Product,
    backend: SandboxBackend,
    gateway: Gateway,
    socket: Path,
    folder: RunFolder,
) -> EpisodeRunner:
    cache = Path(config.reward.cache) if config.reward.cache else folder.path / "verdicts"
    verifier = Verifier(backend, cache)
    tools = product.tools.model_dump()
    return EpisodeRunner(
        backend=backend,
        gate=gateway,
        spec=lambda task: sandbox_spec(product, task, socket),
        launch=lambda sandbox, task, key: run_product(
            product, sandbox, task, base_url(product), key
        ),
        judge=verifier.judge,
        score=partial(episode_signals, tools=tools),
        reward=partial(evaluate, config.reward.formula),
        max_calls=config.gateway.max_calls,
    )


def _death_note(ledger: Ledger) -> Callable[[str, str], None]:
    def note(name: str, cause: str) -> None:
        boundary = "train" if name == "trainer" else name
        ledger.add_fault(Fault(boundary=boundary, cause=cause, at=time.time()))

    return note


def _engine(
    stack: AsyncExitStack, config: Config, folder: RunFolder, ledger: Ledger, store: WeightStore
) -> tuple[EngineClient, dict[str, LocalService]]:
    token, socket, settings = secrets.token_urlsafe(24), folder.socket("engine"), config.engine
    client = EngineClient(socket, token)

    def command() -> Sequence[str]:
        # Asked at every start: a restarted engine begins with the newest version.
        newest = store.latest() or store.get(0)
        policy = folder.scratch / "policy.json"
        write_atomic(policy, to_json(newest))
        options = {
            "--model": newest.path,
            "--policy": policy,
            "--socket": socket,
            "--slots": settings.slots,
            "--context": context_of(config, store),
            "--threads": settings.threads,
            "--dtype": settings.dtype,
            "--device": settings.device,
            "--reuse": "keep" if settings.reuse_across_versions else "recompute",
        }
        flags = ["--deterministic"] if settings.deterministic else []
        return _python("insitu.engine.server", options, flags)

    service = LocalService(
        name="engine",
        command=command,
        healthy=client.healthy,
        log=folder.path / "engine.log",
        env={"INSITU_TOKEN": token},
        on_death=_death_note(ledger),
    )
    stack.push_async_callback(client.close)
    stack.push_async_callback(service.stop)
    return client, {"engine": service}


def _trainer(
    stack: AsyncExitStack, folder: RunFolder, ledger: Ledger, processes: dict[str, LocalService]
) -> TrainerClient:
    token, socket = secrets.token_urlsafe(24), folder.socket("trainer")
    client = TrainerClient(socket, token)
    processes["trainer"] = LocalService(
        name="trainer",
        command=lambda: _python(
            "insitu.train.server", {"--run": folder.path, "--socket": socket}, []
        ),
        healthy=client.healthy,
        log=folder.path / "trainer.log",
        env={"INSITU_TOKEN": token},
        on_death=_death_note(ledger),
    )
    stack.push_async_callback(client.close)
    stack.push_async_callback(processes["trainer"].stop)
    return client


def _python(module: str, options: Mapping[str, object], flags: Sequence[str]) -> list[str]:
    """The command line of one of insitu's own services."""
    pairs = [str(part) for option in options.items() for part in option]
    return [sys.executable, "-m", module, *pairs, *flags]
