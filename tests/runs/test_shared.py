"""Two daemons of one vault on PostgreSQL share runs, and one goes on where the other is gone.

The remote host counts: each command appends the number of its host to a file.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connmgr.client import Client
from tests.api.wire import add
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.runs.conftest import Hosts
from tests.vault.postgres import Postgres

pytestmark = pytest.mark.needs("postgres", "sshd")

HOSTS = 24
LEASE_SECONDS = 4


class Shared:
    """Two daemons, ``one`` and ``two``, on one server, and 24 connections over one sshd."""

    def __init__(self, server: Postgres, home: Path) -> None:
        self.server, self.home, self.far = server, home, home / "far"
        self.ids: list[str] = []
        self._environment = {
            "CONNMGR_DATABASE_URL": server.dsn(server.create()),
            "CONNMGR_RUN_LEASE": str(LEASE_SECONDS),
        }
        one = self._started("one")
        data = home / "two" / "data" / "connmgr"
        data.mkdir(mode=0o700, parents=True)
        (data / "vault.key").touch(0o600)
        (data / "vault.key").write_bytes((one.data_dir / "vault.key").read_bytes())
        self.daemons = [one, self._started("two")]

    def _started(self, name: str) -> Daemon:
        return Daemon(self.home / name, environment={**self._environment, "CONNMGR_DAEMON_NAME": name})

    def start_both(self) -> None:
        """Start the daemons that do not run."""
        self.daemons = [one if one.running else self._started(one.home.name) for one in self.daemons]

    def client(self, number: int) -> Client:
        return self.daemons[number].client

    def start(self, name: str, more: str = "sleep 0.1", parallel: int = 4) -> str:
        """Start a run at the first daemon, whose targets note that they have begun in the file ``name``."""
        command = f"echo $N >> {self.far / name}; {more}"
        begun = self.client(0).runs.start(connections=self.ids, command=command, parallel=parallel)
        assert begun.run is not None
        return begun.run

    def begun(self, name: str) -> int:
        path = self.far / name
        return len(path.read_text().split()) if path.exists() else 0

    def await_begun(self, name: str, least: int) -> None:
        eventually(lambda: self.begun(name), "too few begin", holds=lambda count: count >= least)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    home = tmp_path_factory.mktemp("shared")
    far = home / "far"
    far.mkdir()
    with closing_server(Postgres()) as server, ssh_server(far, MaxSessions="200") as sshd:
        found = Shared(server, home)
        host = add(found.client(0), "far", type="ssh", **ssh_fields(sshd, sshd.user))
        kind = {"type": "shellEnvironment", "host": host}
        found.ids = [add(found.client(0), f"far{n}", **kind, commands=[f"export N={n}"]) for n in range(HOSTS)]
        yield found
        for daemon in found.daemons:
            daemon.stop()


@contextmanager
def closing_server(server: Postgres) -> Iterator[Postgres]:
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def both(shared: Shared) -> None:
    """Start again what the test before has ended."""
    shared.start_both()


def states(info: object) -> dict[str, int]:
    return {state: count for state, count in info.counts.items() if count}  # type: ignore[attr-defined]


@pytest.mark.parametrize("parallel", [HOSTS, 4])
def test_daemons_share_the_targets_of_a_run(shared: Shared, parallel: int) -> None:
    name = f"both{parallel}"
    run = shared.start(name, "sleep 0.3", parallel)
    info = shared.client(1).runs.wait(run, DEADLINE_SECONDS)
    assert (info.state, states(info)) == ("done", {"done": HOSTS})
    by = Counter(one.daemon for one in shared.client(0).runs.targets(run))
    assert set(by) == {"one", "two"}, by
    assert shared.begun(name) == HOSTS


def test_a_frozen_daemon_begins_nothing_when_it_wakes(shared: Shared) -> None:
    run = shared.start("frozen")
    shared.await_begun("frozen", 3)
    os.kill(shared.daemons[0].pid, signal.SIGSTOP)
    try:
        info = shared.client(1).runs.wait(run, DEADLINE_SECONDS)
        assert info.state in ("done", "failed")
    finally:
        os.kill(shared.daemons[0].pid, signal.SIGCONT)
    found = states(info)
    assert found["done"] + found.get("unknown", 0) == HOSTS
    # It takes part again, under a new boot: a further run of its own ends.
    again = shared.start("after")
    assert shared.client(0).runs.wait(again, DEADLINE_SECONDS).state == "done"
    assert shared.begun("frozen") <= HOSTS
    assert states(shared.client(0).runs.info(run)) == found


def test_a_daemon_that_stops_in_order_hands_over_at_once(shared: Shared) -> None:
    run = shared.start("orderly")
    shared.await_begun("orderly", 3)
    shared.daemons[0].stop()
    info = shared.client(1).runs.wait(run, DEADLINE_SECONDS)
    assert (info.state, states(info), shared.begun("orderly")) == ("done", {"done": HOSTS}, HOSTS)


def test_a_local_connection_belongs_to_the_machine_of_the_daemon_that_was_asked(shared: Shared) -> None:
    from connmgr.client import LOCAL_MACHINE

    begun = shared.client(1).runs.start(connections=[LOCAL_MACHINE], command="true")
    assert begun.run is not None
    info = shared.client(0).runs.wait(begun.run, DEADLINE_SECONDS)
    assert info.state == "done"
    assert [one.daemon for one in shared.client(0).runs.targets(begun.run)] == ["two"]


def test_others_take_part_at_once_and_each_keeps_its_links(shared: Shared) -> None:
    """Whoever had a target in the last run has its link, and so gets it again."""

    def daemons() -> dict[str, str | None]:
        run = shared.start("homes", "sleep 0.2")
        assert shared.client(0).runs.wait(run, DEADLINE_SECONDS).state == "done"
        return {one.connection: one.daemon for one in shared.client(0).runs.targets(run)}

    first = daemons()
    assert set(first.values()) == {"one", "two"}
    again = daemons()
    kept = [id for id, name in again.items() if first[id] == name]
    assert len(kept) > HOSTS / 2, (first, again)


LAPSES = """
import sys
if "connmgr" in " ".join(sys.orig_argv):
    from connmgr.runs.runs import Membership

    held, looks = Membership.is_held, iter(range(1000))

    def is_held(self, boot):
        # As if the process had been frozen between the commit that began a target and the command.
        if sys._getframe(1).f_code.co_name == "admits" and next(looks) in {at}:
            self._ends = 0.0
        return held(self, boot)

    Membership.is_held = is_held
"""


@pytest.mark.parametrize(("manner", "at"), [("shell", (3,)), ("job", (4,)), ("job", (5,))])
def test_what_a_lapsed_daemon_has_not_sent_is_begun_later_where_nobody_else_took_over(
    shared: Shared, tmp_path: Path, manner: str, at: tuple[int, ...]
) -> None:
    """A job's daemon looks at its lease twice: when the target's turn comes, and when the link is open."""
    (tmp_path / "sitecustomize.py").write_text(LAPSES.replace("{at}", repr(at)))
    environment = {
        "CONNMGR_DATABASE_URL": shared.server.dsn(shared.server.create()),
        "CONNMGR_RUN_LEASE": str(LEASE_SECONDS),
        "PYTHONPATH": str(tmp_path),
    }
    hosts = Hosts(Daemon(tmp_path / "home", environment=environment), tmp_path / "far", 6)
    try:
        run = hosts.start(hosts.noting("lapsed"), parallel=2, as_=manner)
        info = hosts.ended(run)
        assert (info.state, states(info)) == ("done", {"done": 6}), hosts.targets(run)
        assert sorted(hosts.begun("lapsed")) == [str(number) for number in range(6)]
    finally:
        hosts.daemon.stop()


def test_a_token_that_one_daemon_revokes_stops_what_all_have_begun(shared: Shared) -> None:
    created = shared.client(0).token.create("theirs", 600, ["connection.read", "shell.any"])
    command = f"echo $N >> {shared.far / 'revoked'}; exec sleep 1000"
    with Client(shared.daemons[0].url, session_token=created["token"]) as theirs:
        run = theirs.runs.start(connections=shared.ids, command=command, parallel=8).run
    assert run is not None
    shared.await_begun("revoked", 8)
    shared.client(1).token.revoke(created["id"])
    info = shared.client(0).runs.wait(run, DEADLINE_SECONDS)
    assert (info.state, info.reason) == ("stopped", "The token was revoked.")
    assert not states(info).keys() & {"done", "starting", "waiting"}
    assert shared.begun("revoked") == 8
