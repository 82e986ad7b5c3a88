import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parent.parent
sys.path.insert(0, str(HOME))

CALC = '''"""Sums."""


def clamp(value, low, high):
    """Bring a value into a range.

    >>> clamp(5, 0, 3)
    3
    """
    if value > low:
        return low
    return min(value, high)


def total(values):
    # a comment
    result = 0
    for value in values:
        result += value
    return result
'''

TESTS = """import unittest

from calc.core import clamp, total


def test_clamp():
    assert clamp(2, 0, 3) == 2


def test_total():
    assert total([1, 2]) == 3


class TotalTests(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(total([]), 0)
"""

ISSUE = (
    "`clamp` in calc/core.py:4 is broken: tests/test_core.py::test_clamp fails. "
    "Fix it; leave the tests alone.\n"
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "calc").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "calc/__init__.py").write_text("")
    (root / "calc/core.py").write_text(CALC)
    (root / "tests/test_core.py").write_text(TESTS)
    return root


class Api:
    """A scripted model: answers with its replies one after the other, keeps the requests."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = api.replies.pop(0)
                if reply == "hang up":
                    self.close_connection = True
                    return
                if isinstance(reply, int):
                    status, answer = reply, {"error": {"message": "scripted"}}
                else:
                    api.requests.append(json.loads(body))
                    api.headers.append(dict(self.headers))
                    status, answer = 200, {"choices": [{"index": 0, "message": reply}]}
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def results(self) -> list[str]:
        """The tools' results, as the last request carries them."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "tool"]


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.server.shutdown()
    api.server.server_close()


_count = iter(range(10**9))


def say(*calls: tuple[str, Any], text: str = "") -> dict[str, Any]:
    """An assistant's message with tool calls; arguments may be any text that is not JSON."""
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {
                "id": f"call_{next(_count)}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for name, given in calls
        ],
    }
