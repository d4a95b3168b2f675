"""Tests that the documentation names exist: whoever reads that something is protected can look."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"\btests/[\w/]+\.py(?:::\w+)?")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    missing = []
    for name in set(NAMED.findall(page.read_text())):
        path, _, function = name.partition("::")
        if not (ROOT / path).is_file() or (function and function not in functions(ROOT / path)):
            missing.append(name)
    assert missing == []
