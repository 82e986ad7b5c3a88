"""What makes a test run cheap: compile only the one test, and nothing twice.

Each run is a new process that reads all files anew. Most of its time goes into compiling them
and into pytest's rewriting of assertions, so both are done for the wanted test only, and what was
compiled is kept under the digest of its source.
"""

import ast
import hashlib
import marshal
import os
import re
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any


def leave_out_other_tests(test: str) -> None:
    """Have pytest empty the other tests of a file before it rewrites their assertions."""
    from _pytest.assertion import rewrite

    wanted = test.rsplit("::", 1)[-1].split("[")[0]
    rewrite_asserts = rewrite.rewrite_asserts

    def rewrite_one(tree: ast.Module, code: bytes, *others: Any) -> None:
        defined_or_used = re.findall(rb"(\bdef\s+)?\b(test\w*)", code)
        kept = {name.decode() for define, name in defined_or_used if not define} | {wanted}
        for node in _functions(tree.body):
            if node.name.startswith("test") and node.name not in kept:
                node.body = [ast.copy_location(ast.Pass(), node.body[0])]
        rewrite_asserts(tree, code, *others)

    rewrite.rewrite_asserts = rewrite_one  # type: ignore[assignment]


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def remember_compiled(cache: Path, test: str) -> None:
    """Keep compiled code in a folder; it is found again by the digest of path and source."""
    from _pytest.assertion import rewrite

    compile_source = SourceFileLoader.source_to_code
    rewrite_test: Any = getattr(rewrite, "_rewrite_test", None)  # not in every pytest

    def source_to_code(self: Any, data: Any, path: Any, **options: Any) -> Any:
        if not isinstance(data, bytes) or options:
            return compile_source(self, data, path, **options)
        return _once(cache, f"{path}", data, lambda: compile_source(self, data, path))

    def rewritten(file: Path, config: Any) -> tuple[None, CodeType]:
        key = f"{file} {test}"
        code = _once(cache, key, file.read_bytes(), lambda: rewrite_test(file, config)[1])
        return None, code  # in the first place stands what only writing bytecode needs

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]
    if callable(rewrite_test):
        rewrite._rewrite_test = rewritten  # type: ignore[assignment]


def _once(cache: Path, name: str, source: bytes, make: Callable[[], CodeType]) -> CodeType:
    kept = cache / hashlib.blake2b(name.encode() + b"\0" + source).hexdigest()[:32]
    try:
        code: CodeType = marshal.loads(kept.read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        code = make()
        part = kept.with_suffix(f".{os.getpid()}")
        try:
            part.write_bytes(marshal.dumps(code))
            part.replace(kept)
        except OSError:
            pass  # a full disk costs time, nothing else
    return code
