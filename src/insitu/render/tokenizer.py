"""The tokenizer surface that `renderers` needs, over `tokenizers` alone.

Loading a tokenizer through transformers takes seconds and hundreds of megabytes; a fast
tokenizer is one file. The second reason is safety: text from files and tools that spells a
special token (`<|im_end|>` in a source file, say) stays text here, so nothing that a tool
returns can close a turn or open another.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from insitu.types import UsageError

_TURN_HEADER = "<|im_start|>assistant\n"
"""The one text with a special token that ChatML renderers encode themselves (to find it)."""


class FastTokenizer:
    """A `tokenizer.json`, with special tokens in text kept as text.

    Raises:
        UsageError: the folder has no readable `tokenizer.json`.
    """

    unk_token_id: int | None = None
    """None: a token that the vocabulary lacks is reported as None, never as unknown."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.name_or_path = str(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UsageError(
                f"{path}: no such file",
                remedy="give a model folder with a fast tokenizer (tokenizer.json)",
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # `tokenizers` raises bare Exception for a bad file
            raise UsageError(f"{path}: {error}", remedy="get the file again") from error
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {t.content: i for i, t in added.items() if t.special}
        self._marks = re.compile(
            "(" + "|".join(map(re.escape, sorted(self._special, key=len, reverse=True))) + ")"
        )
        self._header = self.encode_marked(_TURN_HEADER)
        self.eos_token_id = self._special.get(_eos_token(folder))

    @property
    def vocabulary(self) -> int:
        """Number of token ids, added tokens included."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Token ids of `text`; special tokens spelled in it are encoded as ordinary text."""
        if text == _TURN_HEADER:
            return list(self._header)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of `text` in which special tokens are spelled out, e.g. a whole prompt."""
        if not self._special:
            return self.encode(text)
        ids: list[int] = []
        for piece in self._marks.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids.extend(self._tokenizer.encode(piece, add_special_tokens=False).ids)
        return ids

    def decode(
        self, token_ids: Sequence[int], *_: Any, skip_special_tokens: bool = False, **__: Any
    ) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or None; for a sequence a list of them."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(t) for t in tokens]


def _eos_token(folder: Path) -> str:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return ""
    value = json.loads(path.read_text()).get("eos_token") or ""
    return str(value["content"] if isinstance(value, dict) else value)
