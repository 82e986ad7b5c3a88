"""Make the pocket base policy's data: functions, tokenizer, token sets.

    python examples/pocket/make.py WORK functions           # corpus.toml -> functions.jsonl
    python examples/pocket/make.py WORK tokenizer
    python examples/pocket/make.py WORK repairs sets.toml   # synthetic repairs -> sets/NAME
    python examples/pocket/make.py WORK sessions IN.jsonl NAME

`examples/pocket/all.sh` runs everything in order, training included. This file is the place where
corpus, tasks (mutations) and the product (its texts and its view of a file) meet.
"""

import json
import random
import sys
import sysconfig
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples" / "mender")]

from mender import source as view  # noqa: E402
from mender import texts  # noqa: E402

from insitu.corpus.documents import (  # noqa: E402
    Document,
    read_archive,
    read_folder,
    read_installed,
    read_unlicensed,
)
from insitu.corpus.edits import RepairMaker, Styles  # noqa: E402
from insitu.corpus.filters import is_test, refusal  # noqa: E402
from insitu.corpus.functions import Function, Unseen, functions  # noqa: E402
from insitu.corpus.sessions import Habits, hurried, renamed  # noqa: E402
from insitu.corpus.tokenizer import (  # noqa: E402
    chat_scaffolds,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from insitu.corpus.tokenset import TokenDocument, write_token_set  # noqa: E402
from insitu.corpus.transcripts import TranscriptEncoder, quoting  # noqa: E402
from insitu.tasks.mutate import candidate_edits, core  # noqa: E402
from insitu.types import InsituError  # noqa: E402

CONFIG = tomllib.loads((Path(__file__).parent / "corpus.toml").read_text())
EXTRA_SCAFFOLDS = [
    "` in ",
    " is broken: ",
    " fails. Fix it; leave the tests alone.",
    "\nfailed: ",
    "\npassed\n",
    "\nerror: old is not in line ",
    "\nno test runs left\n",
]
# Words that a bug or a repair consists of, and those of reports: one token where possible.
HABITS = Habits(**CONFIG["habits"])
_FIELDS = ("name", "first", "last", "digest", "shape", "text")
WORDS = (Path(__file__).parent / "words.txt").read_text().split()


def archives(work: Path) -> list[Path]:
    """The archives that the configuration names."""
    return sorted(a for pattern in CONFIG["sources"]["archives"] for a in work.glob(pattern))


def named(path: str, names: list[str]) -> bool:
    """Whether a path mentions one of the packages."""
    return any(name in path.lower().replace("-", "_") for name in names)


def documents(work: Path) -> Iterator[Document]:
    """Every file of every source, with its licence."""
    sources = CONFIG["sources"]
    left_out = [*sources["held_out"], *sources["skip"]]
    for archive in archives(work):
        if not named(archive.name, left_out):
            yield from read_archive(archive)
    if sources["stdlib"]:
        version = f"cpython-{sys.version.split()[0]}"
        skip = ("site-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip")
        folder = Path(sysconfig.get_paths()["stdlib"])
        yield from read_folder(folder, source=version, licence="PSF-2.0", skip=skip)
    if sources["installed"]:
        names = [name.replace("_", "-") for name in left_out]
        yield from read_installed(Path(sysconfig.get_paths()["purelib"]), skip=names)


def make_functions(work: Path) -> None:
    """Read, filter, deduplicate; provenance goes along with every function."""
    sources, rng = CONFIG["sources"], random.Random(CONFIG["seed"])
    held_out = [a for a in archives(work) if named(a.name, sources["held_out"])]
    forbidden = [f for a in held_out for d in read_unlicensed(a) for f in functions(d)]
    unseen = Unseen(f for f in forbidden if f.last - f.first >= 2)
    found = list(documents(work))
    rng.shuffle(found)
    counts: Counter[str] = Counter()
    licences: Counter[str] = Counter()
    seen: set[str] = set()
    with (work / "functions.jsonl").open("w") as out:
        for document in found:
            why = "copy" if document.digest in seen else refusal(document)
            why = "held out" if named(document.path, sources["held_out"]) else why
            if not why and is_test(document) and rng.random() > sources["tests_kept"]:
                why = "test"
            seen.add(document.digest)
            if why:
                counts[f"document: {why}"] += 1
                continue
            for f in _kept(document, unseen, counts):
                licences[f.document.licence] += 1
                out.write(json.dumps(_record(f)) + "\n")
            if sum(licences.values()) >= sources["max_functions"]:
                break
    stats = {"functions": sum(licences.values()), "licences": licences, "refused": counts}
    (work / "functions.stats.json").write_text(json.dumps(stats, indent=1) + "\n")


def _kept(document: Document, unseen: Unseen, counts: Counter[str]) -> Iterator[Function]:
    sources = CONFIG["sources"]
    shortest, longest = sources["lines"]
    kept = 0
    for f in functions(document):
        why = unseen.refusal(f) if shortest <= f.last - f.first + 1 <= longest else "length"
        if not why and max(map(len, f.text.split("\n"))) > sources["widest"]:
            why = "wide"
        if not why and kept >= sources["per_file"]:
            why = "too many of one file"
        if why:
            counts[f"function: {why}"] += 1
        else:
            kept += 1
            yield f


def _record(f: Function) -> dict[str, Any]:
    d = f.document
    function = {k: getattr(f, k) for k in (*_FIELDS, "attributes")}
    return {"source": d.source, "path": d.path, "licence": d.licence, "doc": d.digest, **function}


def read_functions(work: Path, first: int, count: int) -> list[Function]:
    """A range of functions.jsonl."""
    with (work / "functions.jsonl").open() as lines:
        records = [json.loads(s) for i, s in enumerate(lines) if first <= i < first + count]
    return [
        Function(
            document=Document(
                source=r["source"], path=r["path"], licence=r["licence"], digest=r["doc"], text=""
            ),
            **{k: r[k] for k in _FIELDS},
            attributes=tuple(r["attributes"]),
        )
        for r in records
    ]


def make_tokenizer(work: Path) -> None:
    """Merges from functions as the product shows them, paths, test names and the words of bugs."""
    config = CONFIG["tokenizer"]
    rng = random.Random(1)
    found = []
    for f in read_functions(work, 0, config["texts"]):
        start = rng.choice((f.first, rng.randint(1, 3000)))
        lines = [""] * (start - 1) + f.text.split("\n")
        shown = view.numbered(lines, start)
        stem, name = Path(f.document.path).stem, f.name.split(".")[-1]
        test = f"tests/test_{stem}.py::Test{name.title()}::test_{name}"
        found.append("\n".join([*shown, f"{f.document.path}:{start} {f.name} {test}"]))
    found += ["\n".join(WORDS)] * 120
    scaffolds = chat_scaffolds(texts.SYSTEM, texts.tools()) + EXTRA_SCAFFOLDS
    made = train_tokenizer(found, vocabulary=config["vocabulary"], scaffolds=scaffolds)
    save_tokenizer(made, work / "tokenizer", context=config["context"])


def encoder(work: Path) -> TranscriptEncoder:
    """Conversations to tokens, with the tokenizer that was made."""
    tokenizer = load_tokenizer(work / "tokenizer")
    return TranscriptEncoder(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids, texts.tools()
    )


def edited(messages: list[dict[str, Any]]) -> frozenset[int]:
    """Indexes of the answers to `edit` and `undo`: one line, found again by its number.

    To predict it, a model must find the line that the call names and copy it with the change: the
    very thing it needs for writing `old`. So these lines carry loss, though no model says them.
    """
    return frozenset(
        i
        for i, message in enumerate(messages)
        if message["role"] == "tool"
        and messages[i - 1]["tool_calls"][0]["function"]["name"] in ("edit", "undo")
    )


def make_repairs(work: Path, spec: dict[str, Any]) -> None:
    """One token set of synthetic repairs, as a table of sets.toml says."""
    rng = random.Random(spec["seed"])
    found = [
        f
        for f in read_functions(work, spec["first"], spec["functions"])
        if len(f.text) <= spec["longest"]
    ]
    paths = sorted({f.document.path for f in found if "/" in f.document.path[:39]})
    maker = RepairMaker(
        system=texts.SYSTEM,
        candidates=candidate_edits,
        core=core,
        show=view.numbered,
        paths=[p for p in paths if len(p) < 40],
        family_weights=spec.get("families", CONFIG["families"]),
        styles=Styles(**spec["styles"]),
    )
    encode = encoder(work)
    kept = []

    def made() -> Iterator[TokenDocument]:
        for f in found:
            try:
                talks = maker.make(f, rng, spec["variants"])
            except (InsituError, SyntaxError, ValueError, RecursionError, IndexError):
                continue  # code that this Python parses in the file but not on its own
            for talk in talks:
                messages, unscored = hurried(talk.messages, talk.unscored, HABITS, rng)

                def scored(
                    i: int,
                    line: str,
                    broken: frozenset[int] = talk.broken,
                    edits: frozenset[int] = edited(messages),
                ) -> bool:
                    number = line.split(" ", 1)[0]
                    if i in edits:
                        return number.isdigit()
                    sound = number.isdigit() and int(number) not in broken
                    return rng.random() < spec["context_share"] and sound

                if spec["before_edit"]:
                    messages = quoting(messages, scan=spec["before_edit"] == "scan")
                if spec.get("keep_text"):
                    kept.append({"messages": messages, "family": talk.family})
                yield encode.document(messages, unscored=unscored, also_scored=scored)

    folder = work / "sets" / spec["name"]
    _tell(write_token_set(made(), folder, about={"spec": spec}))
    if spec.get("keep_text"):
        text = "".join(json.dumps(k) + "\n" for k in kept)
        (work / "sets" / f"{spec['name']}.jsonl").write_text(text)


def make_sessions(
    work: Path, sessions: Path, name: str, variants: int = 3, longest: int = 1400
) -> None:
    """Recorded sessions as a token set, each a few times with other habits and names.

    What the oracle marked as wrong carries no loss.
    """
    encode = encoder(work)
    rng = random.Random(name)
    words = sorted(
        {
            word
            for f in read_functions(work, 0, 8000)
            for word in PurePosixPath(f.document.path).with_suffix("").parts
            if word.isidentifier() and not word.startswith("_") and len(word) < 14
        }
    )

    def made() -> Iterator[TokenDocument]:
        for line in sessions.read_text().splitlines() * variants:
            record = json.loads(line)
            messages, unscored = hurried(record["messages"], record["unscored"], HABITS, rng)
            messages = quoting(renamed(messages, words, rng), scan=True)
            if messages[-1]["role"] == "tool":
                messages = messages[:-1]  # nothing is said after `finish`

            def scored(i: int, line: str, edits: frozenset[int] = edited(messages)) -> bool:
                return i in edits and line.split(" ", 1)[0].isdigit()

            document = encode.document(messages, unscored=unscored, also_scored=scored)
            if len(document.ids) <= longest:
                yield document

    _tell(write_token_set(made(), work / "sets" / name, about={"sessions": sessions.name}))


def _tell(meta: dict[str, Any]) -> None:
    sys.stdout.write(f"{meta}\n")


def main() -> None:
    """The command line."""
    work, what = Path(sys.argv[1]).resolve(), sys.argv[2]
    if what == "functions":
        make_functions(work)
    elif what == "tokenizer":
        make_tokenizer(work)
    elif what == "repairs":
        for spec in tomllib.loads(Path(sys.argv[3]).read_text())["set"]:
            make_repairs(work, spec)
    elif what == "sessions":
        make_sessions(work, Path(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(f"{what}: choose functions, tokenizer, repairs or sessions")


if __name__ == "__main__":
    main()
