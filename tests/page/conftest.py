"""Fixtures of the tests of the page: one browser for all of them, and visitors who know nothing of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.page.browser import Contexts, Visitor

Visit = Callable[..., "Visitor"]


# Not for the session: while playwright runs, its loop runs in this thread, and other rooms have tests with loops of
# their own.
@pytest.fixture(scope="package")
def contexts() -> Iterator[Contexts]:
    """What all tests of the page share: Chromium, and its contexts."""
    # Imported here: without Chromium its tests are skipped, and most rooms need neither.
    from tests.page.browser import Contexts, chromium

    with chromium() as running:
        yield Contexts(running)


@pytest.fixture
def visit(contexts: Contexts) -> Iterator[Visit]:
    """A function that returns a new :class:`Visitor`; at the end of the test none may have seen a fault.

    Its options are those of playwright's ``new_context``, such as ``viewport=PHONE`` or ``color_scheme="dark"``.
    """
    visitors: list[Visitor] = []

    def new(**options: Any) -> Visitor:
        visitors.append(contexts.visitor(**options))
        return visitors[-1]

    yield new
    assert [fault for visitor in visitors for fault in visitor.leave()] == []


@pytest.fixture
def visitor(visit: Visit) -> Visitor:
    """One visitor."""
    return visit()
