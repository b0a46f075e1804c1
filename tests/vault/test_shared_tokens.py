"""Tokens of a vault that two daemons share."""

from __future__ import annotations

import pytest

from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create


@pytest.mark.needs("postgres")
def test_two_daemons_honour_a_revocation(daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    holder = create(one, "connection.read")
    there = holder._replace(url=other.url)
    there.ok("/connection/info", connections=[LOCAL])
    one.client.post("/token/revoke", id=holder.id)
    eventually(
        lambda: there.send("/connection/info", connections=[LOCAL]).status,
        "the other daemon honours a token that was revoked",
        holds=lambda status: status != 200,
    )
    assert there.refused("/connection/info", connections=[LOCAL]) == "token_revoked"
