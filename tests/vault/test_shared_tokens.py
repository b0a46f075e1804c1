"""Tokens of a vault that two daemons share."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.wire import LOCAL
from tests.conftest import ROOT
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create
from tests.vault.postgres import Postgres


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


HOUR = 3600.0


class Clock(NamedTuple):
    """The clock of one daemon's machine."""

    file: Path

    def set(self, seconds: float) -> None:
        """Put it ahead of the database's by ``seconds``."""
        self.file.write_text(str(seconds))


@pytest.fixture
def ahead(tmp_path: Path) -> Clock:
    clock = Clock(tmp_path / "clock")
    clock.set(0)
    return clock


@pytest.fixture
def of_two_clocks(postgres: Postgres, tmp_path: Path, ahead: Clock) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons on one database, the second on a machine whose clock is :func:`ahead`."""
    environment = {"CONNMGR_DATABASE_URL": postgres.dsn(postgres.create())}
    program = (sys.executable, "-I", str(ROOT / "tests" / "moved.py"))
    with ExitStack() as running:
        one = Daemon(tmp_path / "one", environment=environment)
        running.callback(one.stop)
        data = tmp_path / "other" / "data" / "connmgr"
        data.mkdir(mode=0o700, parents=True)
        (data / "vault.key").touch(0o600)
        (data / "vault.key").write_bytes((one.data_dir / "vault.key").read_bytes())
        moved = environment | {"MOVED_CLOCK": str(ahead.file)}
        other = Daemon(tmp_path / "other", environment=moved, program=program)
        running.callback(other.stop)
        yield one, other


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_token_lasts_as_long_at_each_of_two_daemons(
    of_two_clocks: tuple[Daemon, Daemon], ahead: Clock, seconds: float
) -> None:
    one, other = of_two_clocks
    ahead.set(seconds)
    begun = time.monotonic()
    here = create(one, "connection.read", expires=8)
    there = create(other, "connection.read", expires=8)
    for holder in (here, there, here._replace(url=other.url), there._replace(url=one.url)):
        holder.ok("/connection/info", connections=[LOCAL])
    eventually(
        lambda: [
            holder._replace(url=daemon.url).send("/connection/info", connections=[LOCAL]).status
            for holder in (here, there)
            for daemon in (one, other)
        ],
        "a token that has expired is taken at one of the daemons",
        holds=lambda statuses: statuses == [403] * 4,
    )
    assert 7 < time.monotonic() - begun < 20


@pytest.mark.needs("postgres")
def test_a_clock_that_is_set_ends_nothing_and_prolongs_nothing(
    of_two_clocks: tuple[Daemon, Daemon], ahead: Clock
) -> None:
    _, other = of_two_clocks
    holder = create(other, "connection.read", expires=60)
    for seconds in (HOUR, -HOUR, 0):
        ahead.set(seconds)
        holder.ok("/connection/info", connections=[LOCAL])
        assert holder.refused("/token/renew", id=holder.id) == "scope_denied"
        states = [token["state"] for token in other.client.post("/token/query")["tokens"]]
        assert states == ["valid"]


@pytest.mark.needs("postgres")
def test_an_approval_lasts_as_long_at_each_of_two_daemons(of_two_clocks: tuple[Daemon, Daemon], ahead: Clock) -> None:
    one, other = of_two_clocks
    ahead.set(-HOUR)
    holder = create(one, "shell.argv", rules=[{"effect": "ask", "argv": ["/bin/echo", "a"]}])
    there = holder._replace(url=other.url)
    for daemon in (one, other):
        daemon.client.shell.start(LOCAL)
    request = {"connection": LOCAL, "argv": ["/bin/echo", "a"]}
    assert there.refused("/shell/exec", **request) == "approval_required"
    [asked] = one.client.post("/approval/query")["approvals"]
    # Decided where the clock is behind by an hour, for five seconds.
    other.client.post("/approval/decide", approval=asked["approval"], decision="grant", seconds=5)
    assert holder.ok("/shell/exec", **request)["stdout"] == "a"
    assert there.ok("/shell/exec", **request)["stdout"] == "a"
    eventually(
        lambda: [at.send("/shell/exec", **request).status for at in (holder, there)],
        "the approval lasts on at one of the daemons",
        holds=lambda statuses: statuses == [403, 403],
    )
    assert holder.refused("/shell/exec", **request) == "approval_required"
