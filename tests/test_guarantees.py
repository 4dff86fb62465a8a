"""Promises, tests and SECURITY.md agree. Test files are read, not imported: this costs milliseconds."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .guarantees import GUARANTEES, PROMISES

ROOT = Path(__file__).parents[1]


def test_every_guarantee_belongs_to_a_promise() -> None:
    assert {id.partition("-")[0] for id in GUARANTEES} == set(PROMISES)


def test_every_guarantee_has_a_test() -> None:
    assert sorted(GUARANTEES.keys() - marked_tests().keys()) == []


def test_every_id_a_test_carries_is_a_guarantee() -> None:
    strays = {id: tests for id, tests in marked_tests().items() if id not in GUARANTEES}
    assert strays == {}


def test_security_md_prints_the_promises_in_order() -> None:
    """Under each promise its guarantees, and then its limits."""
    text = (ROOT / "SECURITY.md").read_text()
    at = 0
    for promise, sentence in PROMISES.items():
        ids = [f"- `{id}`: {what}" for id, what in GUARANTEES.items() if id.startswith(promise + "-")]
        expected = "\n".join((f"### {sentence}", "", *ids, "", "Limits. "))
        assert expected in text[at:]
        at = text.index(expected)


def marked_tests() -> dict[str, list[str]]:
    """Guarantee id -> the tests that carry it, as `path::name`. A mark on a class or a module counts for its tests."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")]:
        tree = ast.parse(path.read_bytes(), path)
        for name, decorators in _tests(tree):
            for id in _ids(decorators):
                found[id].append(f"{path.relative_to(ROOT)}::{name}")
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """Each test function with every mark that applies to it."""
    shared = [node.value for node in tree.body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]]
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield node.name, [*shared, *node.decorator_list]
            case ast.ClassDef() if node.name.startswith("Test"):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test"):
                        yield f"{node.name}::{inner.name}", [*shared, *node.decorator_list, *inner.decorator_list]
            case _:
                pass


def _names(assign: ast.Assign) -> list[str]:
    return [target.id for target in assign.targets if isinstance(target, ast.Name)]


def _ids(decorators: list[ast.expr]) -> Iterator[str]:
    """The ids in `pytest.mark.guarantee("a", "b")`, on a test or on one of its parameters."""
    for decorator in decorators:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "guarantee":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"line {node.lineno}: write guarantee ids out"
                    yield str(argument.value)
