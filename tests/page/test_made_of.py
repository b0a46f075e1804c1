"""What the page is made of: its size, its types, and that nothing in it comes from elsewhere."""

from __future__ import annotations

import gzip
import re
import runpy

from connmgr.api.page import NONCE, PAGE
from tests.test_layering import ROOT

MOST_BYTES = 113_000
"""Of all files together, as they are, with their comments and types. Less is better: 60,000 is the aim."""

OWN = [
    path
    for path in sorted(PAGE.rglob("*"))
    if path.suffix in {".js", ".css", ".html"} and "vendor" not in path.relative_to(PAGE).parts
]


def test_our_own_files_are_small() -> None:
    together = b"".join(path.read_bytes() for path in OWN)
    sizes = {str(path.relative_to(PAGE)): len(gzip.compress(path.read_bytes(), 9)) for path in OWN}
    assert len(gzip.compress(together, 9)) <= MOST_BYTES, sizes


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
