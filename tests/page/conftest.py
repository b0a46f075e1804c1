"""Fixtures of the tests of the page: one browser for all of them, and visitors with a profile of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.page.browser import Visitor

Visit = Callable[..., "Visitor"]


# Not for the session: while playwright runs, its loop runs in this thread, and other rooms have tests with loops of
# their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, for all tests of the page."""
    # Imported here: without Chromium its tests are skipped, and most rooms need neither.
    from tests.page.browser import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A function that returns a new :class:`Visitor`; at the end of the test none may have seen a fault.

    Its options are those of playwright's ``new_context``, such as ``viewport=PHONE`` or ``color_scheme="dark"``.
    """
    from tests.page.browser import DESKTOP, Visitor

    visitors: list[Visitor] = []

    def new(**options: Any) -> Visitor:
        visitors.append(Visitor(browser.new_context(**{"viewport": DESKTOP, **options})))
        return visitors[-1]

    yield new
    assert [fault for visitor in visitors for fault in visitor.leave()] == []


@pytest.fixture
def visitor(visit: Visit) -> Visitor:
    """One visitor."""
    return visit()
