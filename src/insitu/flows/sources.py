"""`[midtrain]`'s sources → token sets in the run's folder, each made once.

runs/<name>/sets/
  sources.json           what the run began with; a run that goes on uses it and reads no source
  <label>-<digest>/      a token set; the digest is that of source, tokenizer and context
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insitu.config.midtrain import SourceConfig, TrainSourceConfig
from insitu.config.tree import Config
from insitu.corpus.sources import CodeSource, LedgerSource, Source, TranscriptSource
from insitu.corpus.tokenset import TokenDocument, write_token_set
from insitu.flows.progress import Progress
from insitu.kit.atomic import write_atomic
from insitu.kit.digest import digest_bytes
from insitu.render.renderer import TokenRenderer
from insitu.render.tokenizer import FastTokenizer
from insitu.train.token_sets import TokenSource
from insitu.types import ConfigError, CorruptError, UsageError

_FORMAT = "1"
"""Raised when the same source comes to give other documents."""
_READ_BY_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSets:
    """The token sets of a run."""

    train: tuple[TokenSource, ...]
    held_out: tuple[TokenSource, ...]


def source_sets(config: Config, sets: Path, *, began: bool, progress: Progress) -> SourceSets:
    """Make the token sets that the recipe's sources come to, or find them.

    Args:
        config: names the sources.
        sets: the folder of the run's own sets.
        began: the run has trained, so that it must go on with what it began with.
        progress: is told how far the reading is.

    Raises:
        UsageError: a source cannot be used, or the run began with other ones.
    """
    known = _Known(sets / "sources.json")
    train = config.midtrain.train
    if began:
        known.expect([_key(source) for source in train])
    maker = _Maker(config, sets, progress)
    folders = {
        _key(source): (known.find(source, sets) if began else None) or maker.folder(source)
        for source in (*train, *config.midtrain.held_out)
    }
    known.write([_key(source) for source in train], folders)
    names = _names(config.midtrain.held_out)
    return SourceSets(
        train=tuple(_train_source(source, folders[_key(source)]) for source in train),
        held_out=tuple(
            TokenSource(folder=str(folders[_key(source)]), name=name)
            for source, name in zip(config.midtrain.held_out, names, strict=True)
        ),
    )


def _train_source(source: TrainSourceConfig, folder: Path) -> TokenSource:
    kept = source.decay_weight if source.decay_weight >= 0 else None
    return TokenSource(folder=str(folder), weight=source.weight, decay_weight=kept)


def _key(source: SourceConfig) -> str:
    """What a source is, whatever its weight."""
    values = source.model_dump(include={"suffixes", "tools"})
    return json.dumps({source.kind: source.path} | {k: v for k, v in values.items() if v})


def _names(sources: Sequence[SourceConfig]) -> list[str]:
    """What results call the sources: the last part of their path, or all of it."""
    short = [_label(source) for source in sources]
    often = Counter(short)
    names = [n if often[n] == 1 else s.path for n, s in zip(short, sources, strict=True)]
    return names if len(set(names)) == len(names) else [_key(s) for s in sources]


def _label(source: SourceConfig) -> str:
    path = Path(source.path).resolve()
    return path.stem if source.kind == "transcripts" else path.name


class _Known:
    """`sources.json`: which sources a run began with, and which sets they came to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._saved = json.loads(path.read_text()) if path.is_file() else None
        except ValueError as e:
            raise CorruptError(f"{path}: {e}", remedy="give another run.name") from e

    def expect(self, train: Sequence[str]) -> None:
        """Refuse sources that the run did not begin with."""
        if self._saved is not None and self._saved["train"] != list(train):
            raise UsageError(
                f"{self._path.parent.parent}: the run began with other sources in midtrain.train",
                remedy="give another run.name, or the sources that it began with",
            )

    def find(self, source: SourceConfig, sets: Path) -> Path | None:
        """The set that the source came to when the run began."""
        name = (self._saved or {"sets": {}})["sets"].get(_key(source))
        return None if name is None or source.kind == "folder" else sets / name

    def write(self, train: Sequence[str], folders: dict[str, Path]) -> None:
        made = {k: f.name for k, f in folders.items() if f.parent == self._path.parent}
        value = {"train": list(train), "sets": made}
        if value != self._saved:
            write_atomic(self._path, json.dumps(value, indent=1) + "\n")


class _Maker:
    """Tokenises sources with the run's tokenizer."""

    def __init__(self, config: Config, sets: Path, progress: Progress) -> None:
        self._config, self._sets, self._progress = config, sets, progress
        self._renderer: TokenRenderer | None = None

    def folder(self, source: SourceConfig) -> Path:
        """The source's token set, made unless it is there."""
        if source.kind == "folder":
            return Path(source.path)
        opened = self._open(source)
        digest = digest_bytes(
            *(text.encode() for text in (_FORMAT, source.kind, opened.digest())),
            str(self._config.midtrain.context).encode(),
            _tokenizer_digest(self._tokenizer).encode(),
        )
        folder = self._sets / f"{_label(source)}-{digest[:12]}"
        if not (folder / "meta.json").is_file():
            self._write(source, opened, folder)
        return folder

    @property
    def _tokenizer(self) -> Path:
        path = self._config.midtrain.tokenizer or self._config.policy.model
        if not path:
            raise ConfigError(
                "neither policy.model nor midtrain.tokenizer is set",
                remedy="name the model's or the tokenizer's folder, which reads the sources",
            )
        return Path(path)

    def _open(self, source: SourceConfig) -> Source:
        context, path = self._config.midtrain.context, Path(source.path)
        if source.kind == "code":
            encode = FastTokenizer(self._tokenizer).encode
            return CodeSource(path, suffixes=source.suffixes, encode=encode, context=context)
        if source.kind == "ledger":
            _same_tokenizer(path, self._tokenizer)
            return LedgerSource(path, context=context)
        self._renderer = self._renderer or TokenRenderer(self._tokenizer)
        tools = Path(source.tools) if source.tools else None
        return TranscriptSource(path, tools=tools, renderer=self._renderer, context=context)

    def _write(self, source: SourceConfig, opened: Source, folder: Path) -> None:
        self._progress.stage(f"tokens of {source.path}, {opened.unit}", opened.units)
        meta = write_token_set(
            self._told(source, opened),
            folder,
            about=lambda: {"source": json.loads(_key(source)), **opened.about()},
            vocabulary=_vocabulary(self._config),
        )
        self._progress.say(f"{source.path}: {_summary(opened.about())}, {meta['tokens']:,} tokens")

    def _told(self, source: SourceConfig, opened: Source) -> Iterator[TokenDocument]:
        found = 0
        for done, documents in opened.documents():
            self._progress.advance(done)
            found += len(documents)
            yield from documents
        if not found:
            raise UsageError(
                f"{source.path}: nothing to learn from: {_summary(opened.about())}",
                remedy="give another source",
            )


def _summary(about: dict[str, Any]) -> str:
    """`212 files (python 200, c 12; left out: 3 generated)`."""
    unit, count = next(iter(about.items()))
    notes = []
    if languages := about.get("languages"):
        notes.append(", ".join(f"{name} {n:,}" for name, n in languages.items()))
    if left := about.get("left_out"):
        notes.append("left out: " + ", ".join(f"{n:,} {reason}" for reason, n in left.items()))
    if over := about.get("over_context"):
        notes.append(f"{over:,} cut at the context, {about['tokens_left_out']:,} tokens left out")
    return f"{count:,} {unit}" + (f" ({'; '.join(notes)})" if notes else "")


def _tokenizer_digest(folder: Path) -> str:
    files = (folder / name for name in _READ_BY_TOKENIZER)
    return digest_bytes(*(f.read_bytes() if f.is_file() else b"" for f in files))


def _vocabulary(config: Config) -> int:
    """Ids that the model has a row for."""
    path = Path(config.policy.model) / "config.json"
    if not config.policy.model:
        return config.midtrain.shape.vocabulary
    try:
        values = json.loads(path.read_text())
        return int(values.get("vocab_size") or values["text_config"]["vocab_size"])
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", remedy="give a model's folder") from e
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptError(f"{path}: no vocab_size", remedy="copy the folder again") from e


def _same_tokenizer(run: Path, tokenizer: Path) -> None:
    """Refuse recorded tokens that belong to another tokenizer, where that can be known."""
    from insitu.config.load import load

    recorded = run / "config.toml"
    model = Path(load(recorded).policy.model) if recorded.is_file() else Path()
    theirs, ours = model / "tokenizer.json", tokenizer / "tokenizer.json"
    if theirs.is_file() and ours.is_file() and theirs.read_bytes() != ours.read_bytes():
        raise UsageError(
            f"{run}: its tokens are those of {model}, not of {tokenizer}",
            remedy="start from a model with the same tokenizer",
        )
