"""Names: outside of the API's facets, each public class has a name of its own, which says what is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FACETS = ("connmgr/api", "connmgr/client", "connmgr/cli")
"""Three sides of the same things: each may call its side of a thing by the thing's name."""

SHARED = {
    "Connection": "Ansible's loader looks for a connection plugin's class by this name.",
}
"""Names that two classes must have, and why. The list may only become shorter."""


def _classes() -> Iterator[tuple[str, str]]:
    """Yield the name and the place of each public class."""
    for folder in ("connmgr", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(tuple(f"{facet}/" for facet in FACETS)):
                for node in ast.walk(ast.parse(path.read_text(), place)):
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        yield node.name, f"{place}:{node.lineno}"


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for name, place in _classes():
        places[name].append(place)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SHARED} == {}
    assert SHARED.keys() - shared.keys() == set(), "These are unique now; remove them from the list."
