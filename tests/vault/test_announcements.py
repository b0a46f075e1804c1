"""What daemons of one vault tell each other: heard when it is committed, and again after the link was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from connmgr.vault import Database, open_database
from connmgr.vault.database import Announcements
from tests.deadlines import DEADLINE_SECONDS
from tests.vault.postgres import Postgres

pytestmark = pytest.mark.needs("postgres")


@pytest.fixture
def databases(postgres: Postgres) -> Iterator[tuple[Database, Database]]:
    """The databases of two daemons, which are the same one."""
    url = postgres.dsn(postgres.create())
    both = open_database(url), open_database(url)
    yield both
    for one in both:
        one.close()


class Ear:
    """Hears a topic."""

    def __init__(self, announcements: Announcements, topic: str) -> None:
        self._heard = threading.Event()
        announcements.on(topic, self._heard.set)

    def hears(self) -> None:
        """Wait for the next announcement."""
        assert self._heard.wait(DEADLINE_SECONDS), "nothing was heard"
        self._heard.clear()

    @property
    def heard(self) -> bool:
        return self._heard.is_set()


def announce(database: Database, *topics: str, fails: bool = False) -> None:
    """Announce topics in one transaction, which is not committed if it ``fails``."""

    def work(tx: sa.Connection) -> None:
        for topic in topics:
            tx.execute(sa.text("SELECT pg_notify('connmgr', :topic)"), {"topic": topic})
        if fails:
            raise ZeroDivisionError

    # Within no vault, and so without the mark of a vault's transactions.
    database.write_beside(work)


def test_only_what_is_committed_is_heard_by_those_who_want_it(databases: tuple[Database, Database]) -> None:
    here, there = databases
    announcements = Announcements(here)
    runs, other = Ear(announcements, "runs"), Ear(announcements, "other")
    announcements.begin()
    try:
        # Once when it begins to listen: what was announced before is not known.
        runs.hears()
        other.hears()
        with pytest.raises(ZeroDivisionError):
            announce(there, "runs", fails=True)
        announce(there, "other")
        other.hears()
        assert not runs.heard
        announce(there, "runs")
        runs.hears()
    finally:
        announcements.close(DEADLINE_SECONDS)
    assert "announcements" not in {thread.name for thread in threading.enumerate()}


def test_after_a_lost_link_everybody_looks_and_hears_again(
    databases: tuple[Database, Database], postgres: Postgres
) -> None:
    here, there = databases
    announcements = Announcements(here)
    runs = Ear(announcements, "runs")
    announcements.begin()
    try:
        runs.hears()
        listening = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
        assert there.read(lambda tx: tx.scalars(listening).all()) == [True]
        runs.hears()
        announce(there, "runs")
        runs.hears()
    finally:
        announcements.close(DEADLINE_SECONDS)
