"""Whatever breaks between a job and its reader: output is complete, the result right, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.cycles import Cycle, plans
from tests.jobs.gives_up import gives_up
from tests.jobs.world import LOCAL, World, dialects, world

pytestmark = [pytest.mark.needs("sshd", "linux"), pytest.mark.slow]


@pytest.fixture(scope="module")
def there() -> Iterator[World]:
    with world() as running:
        yield running


def test_each_thing_that_can_break(there: World) -> None:
    for plan in plans(there, dialects(), len(there.faults), seed=1):
        outcome = Cycle(there, plan).run()
        assert not outcome.wrong, f"{plan}: {outcome.wrong}\n{there.log()[-10_000:]}"


def test_a_client_that_gives_up_before_the_end(there: World, tmp_path: Path) -> None:
    outcome = gives_up(there, there.connection(LOCAL, dialects()[0]), tmp_path / "gate", given_up_after=0.5)
    assert not outcome.wrong, outcome.wrong
