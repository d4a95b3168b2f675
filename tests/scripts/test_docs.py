"""Tests that the documentation names exist: whoever reads that something is protected can look."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
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


LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for place, anchor in LINK.findall(page.read_text()):
        target = page.parent / place if place else page
        if "://" not in place and not (target.exists() and (not anchor or anchor in anchors(target))):
            dead.append(f"{place}#{anchor}")
    assert dead == []


def imports() -> dict[str, set[str]]:
    """Which rooms of the package import which."""
    graph = grimp.build_graph("gtpo_verl")
    rooms: dict[str, set[str]] = {}
    for module in graph.modules:
        room = module.partition(".")[2].partition(".")[0]
        for imported in graph.find_modules_directly_imported_by(module):
            other = imported.partition(".")[2].partition(".")[0]
            if room and other and other != room:
                rooms.setdefault(room, set()).add(other)
    return rooms


def drawn() -> dict[str, set[str]]:
    text = (ROOT / "docs/architecture.md").read_text()
    names = dict(re.findall(r"^  (\w+)\[\"<b>(\w+)</b>", text, re.MULTILINE))
    arrows: dict[str, set[str]] = {}
    for start, ends in re.findall(r"^  (\w+) --> (.+)$", text, re.MULTILINE):
        arrows.setdefault(names[start], set()).update(names[end] for end in ends.split(" & "))
    return arrows


def test_the_picture_of_the_rooms_is_what_they_import() -> None:
    """Every arrow is an import, and every import an arrow or a way along several."""
    real, picture = imports(), drawn()
    order = list(TopologicalSorter(picture).static_order())
    reached: dict[str, set[str]] = {}
    for room in order:
        reached[room] = set().union(*({end} | reached[end] for end in picture.get(room, ())))
    assert {room: ends - real.get(room, set()) for room, ends in picture.items() if ends - real.get(room, set())} == {}
    assert {room: ends - reached.get(room, set()) for room, ends in real.items() if ends - reached[room]} == {}
