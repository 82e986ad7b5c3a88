"""Messages to tokens and back, so that sampled tokens are never tokenised again.

The layout for Qwen3 (`⏎` is the token of a line feed):

    <|im_start|>system⏎{system}⏎⏎# Tools …</tools>…<|im_end|>⏎
    <|im_start|>user⏎{text}<|im_end|>⏎
    <|im_start|>assistant⏎                        the prompt ends here: no think block
    {content}⏎<tool_call>⏎{json}⏎</tool_call><|im_end|>       sampled, kept as it is
    ⏎<|im_start|>user⏎<tool_response>⏎{result}⏎</tool_response><|im_end|>⏎
    <|im_start|>assistant⏎                        the next prompt ends here

A turn cut off at its token limit gets an `<|im_end|>` that was not sampled.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from insitu.render.families import open_renderer
from insitu.render.tokenizer import FastTokenizer
from insitu.render.turns import ParsedTurn, ToolCall

Message = Mapping[str, Any]
"""A message in OpenAI's form; content is text and tool calls carry arguments as text."""
_QUESTION: Message = {"role": "user", "content": "?"}


class TokenRenderer:
    """The renderer that belongs to the model in a folder.

    Example: `TokenRenderer(Path("models/pocket")).first([{"role": "user", "content": "hi"}], [])`.

    Raises:
        UsageError: the folder has no usable tokenizer, or its family is not known.
    """

    def __init__(self, model_dir: Path) -> None:
        self._renderer, self._tokenizer = open_renderer(model_dir)
        self._family = isinstance(self._tokenizer, FastTokenizer)
        self.stop_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())
        """Sampling ends with the first of these; the first one is the usual end of a turn."""

    def first(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Render a whole conversation, ending where the assistant's next turn begins."""
        return tuple(
            self._renderer.render_ids(
                list(messages), tools=list(tools) or None, add_generation_prompt=True
            )
        )

    def bridge(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...] | None:
        """The next prompt: what was rendered and sampled so far, and `new_messages` after it.

        Returns:
            Ids that begin with the previous prompt and completion, or None where the family's
            rules do not allow it (then the conversation is rendered anew).
        """
        bridged = self._renderer.bridge_to_next_turn(
            list(previous_prompt_ids),
            list(previous_completion_ids),
            list(new_messages),
            tools=list(tools) or None,
        )
        return None if bridged is None else tuple(bridged.token_ids)

    def answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """What the policy samples, after the prompt of the messages before, to give the last one.

        It ends with the token that ends the turn. `messages[-1]` is an assistant's.

        Raises:
            ValueError: the model's template does not go on where its own prompt ends.
        """
        spoken = self._spoken(messages[-1])
        if spoken is not None:
            return spoken
        prompt = self.first(messages[:-1], tools)
        whole = tuple(self._renderer.render_ids(list(messages), tools=list(tools) or None))
        if whole[: len(prompt)] != prompt:
            raise ValueError("an answer does not begin where the prompt ends")
        rest = whole[len(prompt) :]
        ends = [i for i, token in enumerate(rest) if token in self.stop_ids]
        return rest[: ends[0] + 1] if ends else rest

    def _spoken(self, message: Message) -> tuple[int, ...] | None:
        """The sampled tokens of a turn, where the family's renderer can tell them apart."""
        # A think block is rendered for a turn after the last question only, and there even an
        # empty one. The policy samples one only if it thinks.
        thinks = bool(message.get("reasoning_content")) or "</think>" in message["content"]
        pair = [_QUESTION, message] if thinks else [message, _QUESTION]
        rendered = self._renderer.render(pair) if self._family else None
        if rendered is None or not rendered.sampled_mask:
            return None
        marks = zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True
        )
        return tuple(t for t, at, sampled in marks if sampled and at == int(thinks))

    def parse(self, ids: Sequence[int], prompt_ids: Sequence[int]) -> ParsedTurn:
        """Read a sampled turn. Any token sequence gives a result, never an exception."""
        try:
            parsed = self._renderer.parse_response(list(ids), prompt_ids=list(prompt_ids))
        except Exception:  # noqa: BLE001 - a parser of another project over whatever was sampled
            return ParsedTurn(content=self._text(ids), malformed=("unreadable",))
        return self._turn(parsed, ids, prompt_ids)

    def encode(self, text: str, *, marked: bool = False) -> tuple[int, ...]:
        """Token ids of `text`; with `marked`, special tokens spelled in it become tokens."""
        if marked and isinstance(self._tokenizer, FastTokenizer):
            return tuple(self._tokenizer.encode_marked(text))
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens spelled out; bytes that are not UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""
        return text

    def _turn(self, parsed: Any, ids: Sequence[int], prompt_ids: Sequence[int]) -> ParsedTurn:
        content: list[str] = [parsed.content]
        calls: list[ToolCall] = []
        malformed: list[str] = []
        for attempt in parsed.tool_calls:
            arguments, cause = _arguments(attempt)
            if cause:
                malformed.append(cause)
                content.append(self._raw(attempt, ids))
            else:
                call_id = attempt.id or _call_id(prompt_ids, ids, len(calls))
                calls.append(ToolCall(id=call_id, name=attempt.name, arguments=arguments))
        return ParsedTurn(
            content="\n".join(c for c in content if c),
            reasoning=parsed.reasoning_content or "",
            tool_calls=tuple(calls),
            malformed=tuple(malformed),
        )

    def _raw(self, attempt: Any, ids: Sequence[int]) -> str:
        if attempt.token_span is None:
            return str(attempt.raw)
        start, end = attempt.token_span
        return self._text(ids[start:end])

    def _text(self, ids: Sequence[int]) -> str:
        return self.decode([i for i in ids if i not in self.stop_ids])


def _arguments(attempt: Any) -> tuple[str, str]:
    """The call's arguments as JSON text, and why it cannot be used ("" if it can)."""
    if attempt.status != "ok":
        return "", str(attempt.status)
    if not isinstance(attempt.name, str) or not attempt.name.isprintable():
        return "", "missing_name"
    value = attempt.arguments
    try:
        if isinstance(value, str):
            return (
                (value, "") if isinstance(json.loads(value), dict) else ("", "arguments_not_object")
            )
        if not isinstance(value, dict):
            return "", "arguments_not_object"
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: only the escaped form can be sent
        return json.dumps(value), ""
    except (ValueError, RecursionError):
        return "", "invalid_json"
    return text, ""


def _call_id(prompt_ids: Sequence[int], ids: Sequence[int], index: int) -> str:
    """An id that the tokens alone decide, so that an episode can be repeated exactly."""
    # The hash of a tuple of ints is the same in every CPython process.
    where = hash((tuple(prompt_ids), tuple(ids), index)).to_bytes(8, "little", signed=True)
    return f"call_{hashlib.blake2b(where, digest_size=12).hexdigest()}"
