"""The page of the architecture: its glossary is whole, its rooms are all, and what it names in code is there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import connmgr.plugin
from tests.test_layering import ORDER

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/ARCHITECTURE.md").read_text()
MOST_LINES = 340

_IN_ROOM = re.compile(r"`(?P<room>[a-z_]+/): (?P<name>\w+)`")
_IN_FILE = re.compile(r"`(?P<file>[\w./-]+\.(?:py|sh|md))(?:: (?P<name>[\w.]+))?`")
_DIRECTORY = re.compile(r"`(?P<directory>[a-z_]+(?:/[a-z_]+)*/)`")


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(title: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the first table of a section, without its head and without rows of one cell."""
    lines = [line for line in _section(title).splitlines() if line.startswith("|")]
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if any(cells[1:]):
            yield cells


TERMS = [term for row in _rows("Glossary") for term in row[0].split(", ")]


@cache
def _definitions(path: Path) -> frozenset[str]:
    """Return the names that a file defines at its top, and ``Class.member`` for the members of classes."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return frozenset(names)


def _file(named: str) -> Path | None:
    """Return the file that the page names, from where it names files: the package, the plugins, or the project."""
    candidates = (ROOT / "connmgr" / named, ROOT / "plugins" / named, ROOT / named)
    return next((path for path in candidates if path.exists()), None)


@cache
def _sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "connmgr").rglob("*.py")))


@pytest.mark.parametrize("term", TERMS)
def test_each_term_is_a_word_of_the_code(term: str) -> None:
    words = r"[\s_-]*".join(map(re.escape, term.split()))
    assert re.search(words, _sources(), re.IGNORECASE), f"Nobody says {term!r}: what does the code call it?"


def test_no_term_is_explained_twice() -> None:
    assert sorted(TERMS) == sorted(set(TERMS))


def test_what_the_page_names_in_code_is_there() -> None:
    missing = []
    for match in _IN_ROOM.finditer(PAGE):
        files = (ROOT / "connmgr" / match["room"]).rglob("*.py")
        missing += [] if any(match["name"] in _definitions(path) for path in files) else [match[0]]
    for match in _IN_FILE.finditer(PAGE):
        path = _file(match["file"])
        if path is None or (match["name"] and match["name"] not in _definitions(path)):
            missing.append(match[0])
    missing += [match[0] for match in _DIRECTORY.finditer(PAGE) if _file(match["directory"]) is None]
    assert missing == []


def test_each_room_is_in_the_table_of_rooms() -> None:
    named = {
        place.strip("/").removesuffix(".py") for row in _rows("The rooms") for place in row[0].strip("`").split("`, `")
    }
    packages = {path.parent.name for path in (ROOT / "connmgr").glob("*/__init__.py")}
    assert named == packages | set(ORDER)


def test_the_order_of_imports_is_that_of_the_test() -> None:
    assert " ← ".join(ORDER) in _section("Who imports whom").splitlines()


def test_each_group_of_endpoints_is_in_the_glossary() -> None:
    from connmgr.api.app import endpoints

    groups = {endpoint.path.split("/")[1] for endpoint in endpoints() if endpoint.described}
    assert groups - {term.split()[0] for term in TERMS} - {term.replace(" ", "") for term in TERMS} == set()


def test_each_class_of_the_plugin_contract_is_in_the_glossary() -> None:
    defined = {
        name
        for name in connmgr.plugin.__all__
        if inspect.isclass(kind := getattr(connmgr.plugin, name)) and kind.__module__.startswith("connmgr.plugin.")
    }
    named = {match.rpartition(" ")[2] for match in re.findall(r"`([^`]+)`", _section("Glossary"))}
    assert defined - named == set()


def test_the_page_stays_a_first_hour() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES
