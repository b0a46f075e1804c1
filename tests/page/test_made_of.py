"""What the page is made of: its size, its types, and that nothing in it comes from elsewhere."""

from __future__ import annotations

import re
import runpy

from connmgr.api.page import NONCE
from connmgr.api.page_files import PAGE, PageFiles
from tests.test_layering import ROOT

MOST_AT_FIRST = 29_500
"""Bytes of our own until the hub is there, as they are delivered: each file by itself, without comments and
indentation, packed by gzip."""

MOST_BYTES = 109_300
"""The same of all files."""

OWN = [
    path
    for path in sorted(PAGE.rglob("*"))
    if path.suffix in {".js", ".css", ".html"} and "vendor" not in path.relative_to(PAGE).parts
]


def test_our_own_files_are_small() -> None:
    files = PageFiles()
    sizes = {name: len(files.get(name).packed) for name in (path.relative_to(PAGE).as_posix() for path in OWN)}
    named = re.findall(r'(?:href|src)="/page/(?!vendor/)([^"]+)"', (PAGE / "index.html").read_text())
    first = {"index.html": sizes["index.html"], **{name: sizes[name] for name in named}}
    assert "views/hub.js" in first
    assert sum(first.values()) <= MOST_AT_FIRST, first
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def test_what_the_first_view_needs_is_asked_for_at_once() -> None:
    """What the page's head names is all that the hub and what it imports are made of: no file waits for another."""
    named = set(re.findall(r'(?:href|src)="/page/([^"]+\.js)"', (PAGE / "index.html").read_text()))
    needed, unread = {"main.js", "views/hub.js"}, ["main.js", "views/hub.js"]
    while unread:
        name = unread.pop()
        if name.startswith("vendor/"):
            continue
        for found in re.findall(
            r'^(?:import|\} from|export \{.*\} from).*"(\.[^"]+\.js)";$', (PAGE / name).read_text(), re.MULTILINE
        ):
            path = (PAGE / name).parent.joinpath(found).resolve().relative_to(PAGE.resolve()).as_posix()
            if path not in needed:
                needed.add(path)
                unread.append(path)
    assert named == needed


def test_the_types_of_the_page_are_those_of_the_contract() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "page_types.py"))["declarations"]()
    assert (PAGE / "contract.d.ts").read_text() == written, "write it anew: .venv/bin/python scripts/page_types.py"


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in OWN:
        text = path.read_text()
        # Addresses of name spaces of XML are no addresses of files.
        found = re.findall(r"""["'(=](?:https?:)?//[^"')\s]+""", text.replace("http://www.w3.org/", ""))
        assert found == [], path


def test_components_listen_as_soon_as_they_are_drawn() -> None:
    """``useEffect`` runs some frames later: an event, a key or an address in between would be lost."""
    listening = re.compile(r"useEffect\(\s*\(\)\s*=>\s*(?:\{[^}]*?\b)?(?:on|onLive|register|watchers\.add)\(")
    for path in OWN:
        assert not listening.search(path.read_text()), f"{path}: useLayoutEffect"


def test_no_script_style_or_handler_stands_in_the_markup() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=", html)
    assert html.count(NONCE) >= 1
    for path in OWN:
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in path.read_text(), f"{path}: the policy of the page refuses {word}"
