"""Conversations and recorded segments as token documents, with loss on the policy's tokens only.

The layout is that of Qwen3 as the gateway renders it (`⏎` is a line feed, encoded alone):

    <|im_start|>system⏎{system}⏎⏎# Tools …<|im_end|>⏎<|im_start|>user⏎{text}<|im_end|>⏎
    <|im_start|>assistant⏎[<tool_call>⏎{json}⏎</tool_call><|im_end|>]⏎
    <|im_start|>user⏎<tool_response>⏎{result}⏎</tool_response><|im_end|>⏎ …

with the loss on what stands in brackets.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from insitu.corpus.tokenizer import TOOLS_FOOTER, TOOLS_HEADER
from insitu.corpus.tokenset import TokenDocument
from insitu.types import Segment, UsageError

Message = Mapping[str, Any]
"""A message of OpenAI's Chat Completions API; content is text, arguments are JSON text."""
Encode = Callable[[str], Sequence[int]]
_FRAME = re.compile(r"^(\S+\.py):(\d+) ", re.MULTILINE)


class TranscriptEncoder:
    """Turns conversations into token documents.

    Example: `TranscriptEncoder(encode, tools).document(messages)`.
    """

    def __init__(self, encode: Encode, tools: Sequence[Mapping[str, Any]]) -> None:
        """`encode` gives the ids of a text and knows Qwen3's markers as single tokens.

        Raises:
            UsageError: one of the markers is not a single token.
        """
        self._encode = lru_cache(maxsize=4096)(lambda text: tuple(encode(text)))
        self._tools = tools
        self._start, self._end, self._call, self._call_end, self._reply, self._reply_end = (
            self._marker(m)
            for m in (
                "<|im_start|>",
                "<|im_end|>",
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "</tool_response>",
            )
        )

    def document(
        self,
        messages: Sequence[Message],
        *,
        unscored: Collection[int] = (),
        also_scored: Callable[[int, str], bool] | None = None,
    ) -> TokenDocument:
        """The whole conversation.

        `unscored` are indexes of assistant messages without loss (wrong tries that are shown but
        not taught). `also_scored(message, line)` may put loss on lines of tool results too.
        """
        ids: list[int] = []
        loss: list[bool] = []

        def put(new: Sequence[int], scored: bool = False) -> None:
            ids.extend(new)
            loss.extend([scored] * len(new))

        for i, message in enumerate(messages):
            role = message["role"]
            if role == "tool":
                self._tool(messages, i, put, also_scored)
                continue
            put(self._start)
            if role == "assistant":
                put(self._encode("assistant\n"))
                put([*self._spoken(message), *self._end], i not in unscored)
            else:
                put(self._encode(f"{role}\n{self._text(message, first=i == 0)}"))
                put(self._end)
            put(self._encode("\n"))
        return TokenDocument(ids=tuple(ids[:-1]), loss=tuple(loss[:-1]))

    def _marker(self, text: str) -> tuple[int, ...]:
        found = self._encode(text)
        if len(found) != 1:
            raise UsageError(
                f"{text} is not one token", remedy="use a tokenizer of the Qwen3 family"
            )
        return found

    def _text(self, message: Message, *, first: bool) -> str:
        content: str = message.get("content") or ""
        if not (first and self._tools and message["role"] == "system"):
            return content
        tools = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in self._tools)
        return f"{content}\n\n{TOOLS_HEADER}{tools}{TOOLS_FOOTER}"

    def _spoken(self, message: Message) -> list[int]:
        content = message.get("content") or ""
        calls = message.get("tool_calls") or []
        ids = list(self._encode(content + ("\n" if content and calls else "")))
        for i, call in enumerate(calls):
            function = call["function"]
            text = f'\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n'
            ids += self._encode("\n") if i else ()
            ids += [*self._call, *self._encode(text), *self._call_end]
        return ids

    def _tool(
        self,
        messages: Sequence[Message],
        i: int,
        put: Callable[..., None],
        also_scored: Callable[[int, str], bool] | None,
    ) -> None:
        if messages[i - 1]["role"] != "tool":
            put([*self._start, *self._encode("user")])
        put([*self._encode("\n"), *self._reply])
        content = f"\n{messages[i]['content']}\n"
        whole = self._encode(content)
        parts = [(line, self._encode(line)) for line in content.splitlines(keepends=True)]
        if also_scored is None or whole != tuple(t for _, part in parts for t in part):
            put(whole)  # Without line losses where a token reaches over the end of a line.
        else:
            for line, part in parts:
                put(part, line != "\n" and also_scored(i, line))
        put(self._reply_end)
        if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
            put([*self._end, *self._encode("\n")])


def quoting(
    messages: Sequence[Message], *, scan: bool = False, longest: int = 200
) -> list[Message]:
    """The conversation with the line quoted before each `edit` call, as it was last shown.

    A small model copies a line well once its number stands there, and finds the wrong token
    better in a line that it has just written with the whole function in view. With `scan` it
    goes through the lines of the last `read` from the first one and stops at the line to edit, so
    that finding the line is one decision per line; a line that a frame of the last test report
    names is quoted alone. Lines over `longest` characters, and lines that no tool result showed,
    are not quoted. Tools are those of a product whose results show code as "{line} {text}", whose
    reports show frames as "{path}:{line} {text}", and whose `edit` takes `path` and `line`.
    """
    shown: dict[str, str] = {}
    pointed: set[tuple[str, str]] = set()
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            lines = dict(_numbered(message["content"]))
            shown = lines if len(lines) > 1 else {**shown, **lines}
            if message["content"].startswith("failed: "):
                pointed = set(_FRAME.findall(message["content"]))
        for call in message.get("tool_calls") or ():
            if call["function"]["name"] == "edit":
                arguments = json.loads(call["function"]["arguments"])
                line = str(arguments.get("line"))
                alone = not scan or (arguments.get("path"), line) in pointed
                message = {**message, "content": _until(line, shown, alone, longest)}
        found.append(message)
    return found


def _numbered(content: str) -> Iterator[tuple[str, str]]:
    for text in content.split("\n"):
        number, space, _ = text.partition(" ")
        if space and number.isdigit():
            yield number, text


def _until(line: str, shown: Mapping[str, str], alone: bool, longest: int) -> str:
    if line not in shown or len(shown[line]) > longest:
        return ""
    if alone:
        return shown[line]
    numbers = list(shown)
    return "\n".join(shown[n] for n in numbers[: numbers.index(line) + 1])


def segment_document(segment: Segment) -> TokenDocument:
    """A recorded segment: its exact tokens, with loss where the policy sampled them."""
    return TokenDocument(ids=segment.token_ids, loss=segment.trainable)
