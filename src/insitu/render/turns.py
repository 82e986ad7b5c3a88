"""What a sampled turn means once its tokens are read."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call of a tool, as the product receives it.

    Example: `ToolCall(id="call_5f0c…", name="read", arguments='{"path": "a.py", "line": 3}')`.
    """

    id: str
    """Unique within an episode; the same tokens after the same prompt give the same id."""
    name: str
    arguments: str
    """A JSON object as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedTurn:
    """A sampled turn as a message.

    Example: the tokens of `Let me look.<tool_call>…</tool_call><|im_end|>` give
    `ParsedTurn(content="Let me look.", tool_calls=(ToolCall(…),))`.
    """

    content: str
    """Text for the product. Tool calls that cannot be read are in it as raw text."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    """One cause for each tool call that could not be read: `invalid_json`, `unclosed_block`,
    `missing_name`, `arguments_not_object`, another status of the family's parser, or
    `unreadable` where the parser failed on the whole turn."""
