"""Nothing is swallowed, and only the command line talks to the terminal."""

import ast
import re

from tests.arch.house import Module, modules

BROAD = {"Exception", "BaseException"}
_REASON = re.compile(r"#\s*noqa:\s*BLE001\W+\w+.*\w")


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in BROAD for n in ast.walk(handler.type))


def _may_stand(module: Module, handler: ast.ExceptHandler) -> bool:
    if any(isinstance(n, ast.Raise) for n in ast.walk(handler)):
        return True
    line = module.text.splitlines()[handler.lineno - 1]
    silent = all(isinstance(n, ast.Pass | ast.Continue) for n in handler.body)
    return bool(_REASON.search(line)) and not silent


def test_a_broad_except_raises_again_or_says_why_it_stands_there():
    wrong = [
        module.where(node.lineno)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        if _is_broad(node) and not _may_stand(module, node)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_suppressed_broadly():
    wrong = [
        module.where(node.lineno)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
        if any(isinstance(a, ast.Name) and a.id in BROAD for a in node.args)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_prints():
    wrong = [
        module.where(node.lineno)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)
