"""What holds for every module of the package."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gtpo_verl"
PACKAGES = [path.parent for path in sorted(PACKAGE.rglob("__init__.py"))]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_no_name_of_a_package_is_hidden_by_a_module(package: Path) -> None:
    """Importing `package.name` sets the attribute `name` of the package: a function of that name would be gone."""
    tree = ast.parse((package / "__init__.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert names & modules == set()
