"""axe-core: what of a page people could not use with a screen reader, a keyboard or weak eyes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tests.test_layering import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SOURCE = ROOT / ".venv" / "page-tools" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("moderate", "serious", "critical")


@cache
def _source() -> str:
    return _SOURCE.read_text()


def hindrances(page: Page) -> list[str]:
    """Return what axe-core finds on the page as it is now: each rule with what violates it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"() => {{ {_source()} }}")
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]
