"""What a token set is made from: code, transcripts, or a run's passed episodes."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from insitu.corpus.code import RefusedFile, list_code, read_code
from insitu.corpus.conversations import count_lines, read_conversations, read_tools
from insitu.corpus.pieces import split_code
from insitu.corpus.recorded import passed_documents, passed_groups
from insitu.corpus.rendered import AnswerRenderer, conversation_documents
from insitu.corpus.tokenset import TokenDocument
from insitu.kit.digest import digest_bytes, digest_file
from insitu.ledger.episodes import EpisodeStore
from insitu.ledger.run_folder import RunFolder

Encode = Callable[[str], Sequence[int]]


class Source(Protocol):
    """Something that gives token documents; read once."""

    unit: str
    """What is counted: `files`, `conversations` or `groups`."""
    units: int
    """How many there are."""

    def digest(self) -> str:
        """Of everything that decides the documents, except the tokenizer and the context."""
        ...

    def documents(self) -> Iterator[tuple[int, list[TokenDocument]]]:
        """Units done so far, and the documents of the last one."""
        ...

    def about(self) -> dict[str, Any]:
        """What was found and what was left out, once the documents have been read."""
        ...


class CodeSource:
    """A folder of code: one document per file, or one per piece of a file over the context.

    No token marks a document's end: the trainer knows the borders by their lengths.
    """

    unit = "files"

    def __init__(self, folder: Path, *, suffixes: Sequence[str], encode: Encode, context: int):
        """Find the files.

        Raises:
            UsageError: see `list_code`.
        """
        self._folder, self._encode, self._context = folder, encode, context
        self._files = list_code(folder, suffixes=suffixes)
        self._kept: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.units = len(self._files)

    def digest(self) -> str:
        """See `Source`."""
        parts = [(f.relative_to(self._folder).as_posix(), digest_file(f)) for f in self._files]
        return digest_bytes(*(text.encode() for part in parts for text in part))

    def documents(self) -> Iterator[tuple[int, list[TokenDocument]]]:
        """See `Source`."""
        for done, file in enumerate(read_code(self._folder, self._files), start=1):
            if isinstance(file, RefusedFile):
                self._refused[file.reason] += 1
                yield done, []
                continue
            self._kept[file.language] += 1
            pieces = split_code(file.text, self._count, self._context)
            encoded = (tuple(self._encode(piece)) for piece in pieces)
            yield done, [TokenDocument(ids=ids, loss=(True,) * len(ids)) for ids in encoded]

    def about(self) -> dict[str, Any]:
        """See `Source`."""
        return {
            "files": sum(self._kept.values()),
            "languages": dict(self._kept.most_common()),
            "left_out": dict(self._refused.most_common()),
        }

    def _count(self, text: str) -> int:
        return len(self._encode(text))


class TranscriptSource:
    """A file of conversations, with loss on the assistant's tokens only."""

    unit = "conversations"

    def __init__(self, path: Path, *, tools: Path | None, renderer: AnswerRenderer, context: int):
        """Count the lines and read the tools.

        Raises:
            UsageError: one of the files cannot be read.
        """
        self._path, self._tools_path = path, tools
        self._tools = read_tools(tools) if tools else ()
        self._renderer, self._cut = renderer, _Cut(context)
        self.units = count_lines(path)

    def digest(self) -> str:
        """See `Source`."""
        files = [f for f in (self._path, self._tools_path) if f is not None]
        return digest_bytes(*(digest_file(f).encode() for f in files))

    def documents(self) -> Iterator[tuple[int, list[TokenDocument]]]:
        """See `Source`.

        Raises:
            UsageError: a line is no conversation, or the model's template refuses it.
        """
        for done, conversation in enumerate(read_conversations(self._path, self._tools), start=1):
            found = conversation_documents(self._renderer, conversation)
            yield done, self._cut(found)

    def about(self) -> dict[str, Any]:
        """See `Source`."""
        return {"conversations": self.units, **self._cut.about()}


class LedgerSource:
    """The passed episodes of a run, as they were recorded."""

    unit = "groups"

    def __init__(self, run: Path, *, context: int) -> None:
        """Find the groups.

        Raises:
            UsageError: there is no run, or it has no ledger.
        """
        self._run, self._cut = run, _Cut(context)
        self._groups = passed_groups(run)
        self._documents = 0
        self.units = len(self._groups)

    def digest(self) -> str:
        """See `Source`."""
        store = EpisodeStore(RunFolder(self._run).episodes)
        return digest_bytes(*(digest_file(store.path(g)).encode() for g in self._groups))

    def documents(self) -> Iterator[tuple[int, list[TokenDocument]]]:
        """See `Source`."""
        for done, group in enumerate(self._groups, start=1):
            found = self._cut(list(passed_documents(self._run, group)))
            self._documents += len(found)
            yield done, found

    def about(self) -> dict[str, Any]:
        """See `Source`."""
        return {"groups": self.units, "segments": self._documents, **self._cut.about()}


class _Cut:
    """Ends sessions at the context, as they end in the product; counts what that takes away.

    A piece from the middle of a session would have no instructions and no tools before it.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        self._shortened = self._tokens = 0

    def __call__(self, documents: Sequence[TokenDocument]) -> list[TokenDocument]:
        kept = []
        for document in documents:
            over = len(document.ids) - self._context
            if over > 0:
                self._shortened += 1
                self._tokens += over
                document = TokenDocument(
                    ids=document.ids[: self._context], loss=document.loss[: self._context]
                )
            if any(document.loss):
                kept.append(document)
        return kept

    def about(self) -> dict[str, int]:
        return {"over_context": self._shortened, "tokens_left_out": self._tokens}
