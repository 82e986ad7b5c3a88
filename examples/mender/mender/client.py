"""A small client for the Chat Completions API; one connection, kept open."""

import http.client
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

_TRIES = 6
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0


class ApiError(Exception):
    """The API refused the request, or could not be reached after several tries."""


class Client:
    """Sends the conversation, gives back the assistant's message."""

    def __init__(self, base_url: str, key: str, model: str, timeout_s: float = 600.0) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ApiError(f"{base_url!r} is not an http address")
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.hostname, url.port, timeout=timeout_s)
        self._path = url.path.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._model = model

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """The assistant's next message. Connection errors, 429 and 5xx are tried again."""
        request = {"model": self._model, "messages": messages, "tools": tools}
        body = json.dumps(request, ensure_ascii=False).encode()
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S))
            try:
                status, answer = self._post(body)
            except (OSError, http.client.HTTPException) as e:
                problem = f"no connection: {e or type(e).__name__}"
                continue
            if status == 200:
                return _message(answer)
            problem = f"HTTP {status}: {answer[:500].decode(errors='replace')}"
            if status != 429 and status < 500:
                break
            print(f"mender: {problem}; trying again", file=sys.stderr)
        raise ApiError(problem)

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes) -> tuple[int, bytes]:
        try:
            self._connection.request("POST", self._path, body, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise


def _message(answer: bytes) -> dict[str, Any]:
    try:
        message = json.loads(answer)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        for call in calls:
            call["id"], call["function"]["name"], call["function"]["arguments"]  # all are needed
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        raise ApiError(f"not a chat completion: {answer[:500].decode(errors='replace')}") from e
    kept: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    if calls:
        kept["tool_calls"] = calls
    return kept
