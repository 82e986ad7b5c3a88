"""A small byte-level BPE tokenizer for a model that repairs code through tool calls.

It differs from a general one where a model of a few million parameters needs help:

- Spaces belong to keywords, operators and commas, never to the names beside them, so that a name
  or a number has the same tokens in the code, in a report and as an argument of a tool call.
- Numbers are split from the right into groups of two digits, so that equal line numbers have
  equal tokens and neighbouring ones differ in the last.
- The fixed strings of the chat format and of the product (tool definitions, the JSON around
  arguments) are one token each: added, non-special tokens.

Whatever is encoded decodes to the same text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from insitu.kit.atomic import write_atomic
from insitu.types import UsageError

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Qwen3's markers that are single tokens but part of the text."""

_KEYWORDS = (
    *("and", "or", "not", "in", "is", "if", "elif", "else", "for", "while", "return", "import"),
    *("from", "as", "with", "lambda", "yield", "raise", "assert", "del", "except", "finally"),
    *("def", "class", "async", "await", "global", "nonlocal", "try"),
)
_OPERATORS = (
    r"\*\*=|//=|>>=|<<=|==|!=|<=|>=|->|:=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|\*\*|//|<<|>>|[-+*/%&|^~<>=@]"
)
_PATTERN = "|".join(
    (
        r"\n",
        r" {2,}",
        r"\d{1,2}(?=(?:\d{2})*(?!\d))",
        r" ?(?<!\w)(?:is not|not in)(?!\w) ?",
        rf" ?(?<!\w)(?:{'|'.join(_KEYWORDS)})(?!\w) ?",
        r"(?<!\w)self\.",
        r"\.py(?!\w)",
        r" ?_*(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+)",
        r"_+",
        rf" ?(?:{_OPERATORS}) ?",
        r"\(\)|\[\]|\{\}|[(\[{]+|[)\]}]+(?:[,:] ?)?",
        r"::|[,:;] ?",
        r"\"\"\"|'''|\.\.\.",
        r"[^\s\w]",
        r"\s",
    )
)

TOOLS_HEADER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n</tool_call>'
)


def chat_scaffolds(system: str, tools: Sequence[dict[str, Any]]) -> list[str]:
    """The fixed strings of the Qwen3 format for one system prompt and OpenAI tool definitions.

    Arguments are expected in the order of each definition's `properties`. Example: a tool
    `read(path, line)` gives its definition, `\\n{"name": "read", "arguments": {"path": "`,
    `", "line": ` and the closing strings.
    """
    found = ["assistant\n", system, TOOLS_HEADER, TOOLS_FOOTER, '"}}\n', "}}\n"]
    for tool in tools:
        found.append("\n" + json.dumps(tool, ensure_ascii=False))
        function = tool["function"]
        head = f'\n{{"name": "{function["name"]}", "arguments": {{'
        fields = list(function["parameters"]["properties"].items())
        if len(function["parameters"]["required"]) == 0:
            found.append(head + "}}\n")
        before = head
        for name, kind in fields:
            found.append(f'{before}"{name}": {_quote(kind)}')
            before = f"{_quote(kind)}, "
    return list(dict.fromkeys(found))


def _quote(kind: dict[str, Any]) -> str:
    return '"' if kind["type"] == "string" else ""


def train_tokenizer(
    texts: Iterable[str], *, vocabulary: int, scaffolds: Sequence[str]
) -> Tokenizer:
    """Learn the merges from `texts` and add the fixed tokens behind them.

    `vocabulary` counts everything: bytes, merges, special tokens, scaffolds.

    Raises:
        UsageError: the texts do not fill the vocabulary, so that ids would have gaps.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fixed = len(SPECIAL) + len(MARKS) + len(scaffolds)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - fixed,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=False) for t in (*MARKS, *scaffolds)]
    )
    if tokenizer.get_vocab_size() != vocabulary:
        raise UsageError(
            f"the texts give {tokenizer.get_vocab_size()} tokens, not {vocabulary}",
            remedy="give more text or ask for a smaller vocabulary",
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, context: int) -> None:
    """Write it as a Hugging Face folder with Qwen3's chat template; `context` in tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "tokenizer.json", tokenizer.to_str())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    write_atomic(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_atomic(folder / "chat_template.jinja", _TEMPLATE)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
        UsageError: the folder has no `tokenizer.json`.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UsageError(f"{file}: no such file", remedy="give a model folder with its tokenizer")
    return Tokenizer.from_file(str(file))


def batches(texts: Iterable[str], size: int = 256) -> Iterator[list[str]]:
    """Lists of `size` texts, as the tokenizer trains fastest on them."""
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}
                {{- '\\n' }}
            {%- endif %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
