"""What our comments say of other libraries' files is there: a comment that names a line of yesterday misleads."""

import importlib.util
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gtpo_verl"
FILE = r"(?<![\w/])`{0,2}((?:verl|vllm|ray|torch)/[\w/]+\.py)`{0,2}"
NAMED = re.compile(FILE + r"(?::(\d+)|,? \(?`{1,2}([\w.]+)(?:\(\))?`)?")


def mentions() -> dict[tuple[str, str, str], str]:
    """(file, line, name) that a module of ours mentions: that module."""
    found = {}
    for module in PACKAGE.rglob("*.py"):
        text = re.sub(r"\s*\n\s*(# ?)?", " ", module.read_text(encoding="utf-8"))
        for mention in NAMED.findall(text):
            found[mention] = str(module.relative_to(PACKAGE.parent))
    return found


@pytest.mark.parametrize(("mention", "module"), mentions().items(), ids=lambda part: str(part))
def test_what_a_comment_names_is_there(mention: tuple[str, str, str], module: str) -> None:
    file, line, name = mention
    assert not line, f"{module}: name the function, lines move"
    package = file.split("/")[0]
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    (folder,) = spec.submodule_search_locations or ()
    path = Path(folder, *file.split("/")[1:])
    assert path.is_file(), f"{module}: {file} is gone"
    assert name.rpartition(".")[2] in path.read_text(encoding="utf-8"), f"{module}: {file} has no {name}"
