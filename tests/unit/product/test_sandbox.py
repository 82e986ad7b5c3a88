"""The reference product in a real sandbox, against a scripted model behind a Unix socket."""

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from insitu.product import launch
from insitu.product.config import read_product
from insitu.sandbox.backends import open_backend
from insitu.types import ChangeKind, Task

MENDER = Path(__file__).parents[3] / "examples/mender"

PLAN = [
    ("run_tests", {}),
    ("edit", {"path": "calc.py", "line": 2, "old": "-", "new": "+"}),
    ("run_tests", {}),
    ("finish", {}),
]


class ScriptedModel(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers Chat Completions requests with the plan's tool calls."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "sandbox"

    def do_POST(self) -> None:
        server: ScriptedModel = self.server
        server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        server.keys.add(self.headers["Authorization"])
        name, arguments = PLAN[len(server.requests) - 1]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"c{len(server.requests)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        raw = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptedModel]:
    with ScriptedModel(tmp_path / "gateway.sock") as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def task(tmp_path: Path) -> Task:
    base, folder = tmp_path / "base", tmp_path / "task"
    base.mkdir()
    folder.mkdir()
    (base / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (base / "test_calc.py").write_text(
        "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    )
    text = "`add` in calc.py:1 is broken: test_calc.py::test_add fails. Fix it."
    (folder / "instruction.md").write_text(text)
    return Task(
        task_id="t-1",
        folder=str(folder),
        instruction=text,
        layers=(str(base),),
        workdir="/home/dev/calc",
        env_path=str(Path(pytest.__file__).parents[4]),
        agent_timeout_s=60.0,
        verifier_timeout_s=10.0,
    )


async def test_mender_repairs_a_task_in_its_sandbox(
    tmp_path: Path, model: ScriptedModel, task: Task
) -> None:
    product = read_product(MENDER)
    launch.prepare_product(product)
    backend = open_backend("bubblewrap", tmp_path / "sandboxes")
    if problems := await backend.preflight():
        pytest.skip(problems[0])
    try:
        spec = launch.sandbox_spec(product, task, tmp_path / "gateway.sock")
        sandbox = await backend.create(spec)
        result = await launch.run_product(
            product, sandbox, task, launch.base_url(product), "key-1", model="policy"
        )
        changes = await sandbox.changes()
    finally:
        await backend.close()
    assert result.exit_code == 0, result.stderr
    assert model.keys == {"Bearer key-1"}
    told = [m["content"] for m in model.requests[-1]["messages"] if m["role"] == "tool"]
    assert told == [
        "failed: test_calc.py::test_add\n"
        "test_calc.py:5 assert add(1, 2) == 3\n"
        "AssertionError: assert -1 == 3\n"
        " +  where -1 = add(1, 2)",
        "2     return a + b",
        "passed",
    ]
    assert [(c.path, c.kind) for c in changes] == [("calc.py", ChangeKind.MODIFIED)]
