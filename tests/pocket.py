"""A tokenizer and a model small enough for fast tests, with Qwen3's special tokens.

`make_tokenizer(folder)` takes well under a second and needs no torch; `make_model(folder)`
writes a random Qwen3 with that tokenizer as a Hugging Face model folder.
"""

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenisation."""


def make_tokenizer(folder: Path, vocabulary: int = 512) -> Path:
    """Write a byte-level BPE tokenizer with Qwen3's special tokens; return `folder`.

    Special tokens are marked as in Qwen3: those of `SPECIAL` are special, those of `MARKS` are
    added tokens that decoding keeps. Any text can be encoded and comes back unchanged.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(), _TURN], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_model(
    folder: Path,
    layers: int = 2,
    hidden: int = 64,
    *,
    vocabulary: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    context: int = 1024,
    seed: int = 0,
) -> Path:
    """Write a random Qwen3 (float32, tied embeddings) and its tokenizer; return `folder`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    make_tokenizer(folder, vocabulary)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_id(folder, "<|im_end|>"),
        pad_token_id=_id(folder, "<|endoftext|>"),
        dtype="float32",
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def _id(folder: Path, token: str) -> int:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(t["id"] for t in added if t["content"] == token)


_TURN = """<|im_start|>system
You repair Python code. Use the tools; one call at a time.<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "read", "arguments": {"path": "tests/test_more.py", "line": 190}}
</tool_call><|im_end|>
failed: AssertionError TypeError ValueError return self.assertEqual(list(
"""
