"""A vault on PostgreSQL during failures of server and network."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from connmgr.errors import VaultUnavailable
from connmgr.vault import Vault
from connmgr.vault.backends import _LOCK
from connmgr.vault.names import DEFAULT, LOCAL
from tests.vault.conftest import Add
from tests.vault.postgres import Postgres

pytestmark = pytest.mark.needs("postgres")
OpenVault = Callable[..., Vault]


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A server that tests may stop, freeze and crash."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def name(own_postgres: Postgres) -> str:
    return own_postgres.create()


@pytest.fixture
def shared(own_postgres: Postgres, name: str, open_vault: OpenVault) -> Vault:
    return open_vault(own_postgres.dsn(name))


def test_daemons_that_start_at_once_make_one_vault(own_postgres: Postgres, name: str, open_vault: OpenVault) -> None:
    with ThreadPoolExecutor(4) as pool:
        vaults = list(pool.map(open_vault, [own_postgres.dsn(name)] * 4))
    for vault in vaults:
        assert vault.connections.query() == [LOCAL]
        assert len(vault.categories.query()) == 2


def test_a_restarted_server_goes_unnoticed(own_postgres: Postgres, shared: Vault) -> None:
    before = Add(shared)("before")
    own_postgres.halt()
    own_postgres.start()
    assert shared.connections.get(before).name == "before"
    own_postgres.halt()
    own_postgres.start()
    assert shared.connections.get(Add(shared)("after"))


def test_a_server_that_is_down_is_told_and_survived(own_postgres: Postgres, shared: Vault) -> None:
    own_postgres.halt()
    try:
        for use in (shared.connections.query, lambda: Add(shared)("x"), lambda: shared.categories.add("x", DEFAULT)):
            with pytest.raises(VaultUnavailable, match="does not answer"):
                use()
        shared.connections.touch(LOCAL)
    finally:
        own_postgres.start()
    assert shared.connections.get(Add(shared)("x"))


def test_a_crash_of_the_server_loses_and_doubles_nothing(own_postgres: Postgres, shared: Vault) -> None:
    acknowledged: dict[str, str] = {}
    changed, stop = threading.Condition(), threading.Event()

    def run(writer: int) -> None:
        number = 0
        while not stop.is_set():
            name = f"{writer}-{number}"
            with contextlib.suppress(VaultUnavailable):
                id = Add(shared)(name)
                number += 1
                with changed:
                    acknowledged[name] = id
                    changed.notify()

    def await_more() -> None:
        with changed:
            enough = len(acknowledged) + 15
            assert changed.wait_for(lambda: len(acknowledged) >= enough, 60), f"only {len(acknowledged)} were stored"

    threads = [threading.Thread(target=run, args=[writer]) for writer in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            await_more()
            own_postgres.halt(signal.SIGQUIT)
            own_postgres.start()
        await_more()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    stored = shared.connections.infos(shared.connections.query())
    names = [connection.name for connection in stored if connection.id != LOCAL]
    assert len(names) == len(set(names))
    assert {connection.name: connection.id for connection in stored}.items() >= acknowledged.items()


def test_a_frozen_server_is_told_and_survived(
    own_postgres: Postgres, name: str, open_vault: OpenVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connmgr.vault.backends.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("connmgr.vault.backends.CONNECT_SECONDS", 2)
    shared = open_vault(own_postgres.dsn(name))
    pids = [*own_postgres.backends(name), own_postgres.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(VaultUnavailable, match="does not answer"):
            shared.connections.query()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert shared.connections.query() == [LOCAL]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("change", ["connection", "category", "removal"])
def test_a_commit_that_goes_unanswered_happens_once(
    own_postgres: Postgres, name: str, shared: Vault, open_vault: OpenVault, change: str, moment: str
) -> None:
    known = Add(shared)("known")
    with Unreliable(own_postgres.port) as network:
        vault = open_vault(own_postgres.dsn(name).replace(str(own_postgres.port), str(network.port)))
        network.cut(moment)
        if change == "connection":
            content = {"host": "new"}
            id, created = vault.connections.add("new", "ssh", content, fingerprint=b"new", same=lambda _: True)
            assert created
            assert shared.connections.query("*", "new") == [id]
        elif change == "category":
            id = vault.categories.add("New", DEFAULT)
            assert shared.categories.query("default/new") == [id]
        else:
            assert vault.connections.remove([known]).connections == [known]
            assert shared.connections.query() == [LOCAL]
        assert network.was_cut.is_set()
        vault.close()


def test_a_commit_lost_in_a_crash_is_not_taken_for_another_transaction_s(
    own_postgres: Postgres, name: str, open_vault: OpenVault
) -> None:
    calls: list[int] = []
    back = threading.Event()
    with Unreliable(own_postgres.port) as network, ThreadPoolExecutor(1) as pool:
        vault = open_vault(own_postgres.dsn(name).replace(str(own_postgres.port), str(network.port)))
        network.cut("before", lambda: back.wait(60))
        written = pool.submit(vault.database.write, lambda _: calls.append(1), timeout=60)
        try:
            assert network.was_cut.wait(60)
            own_postgres.halt(signal.SIGQUIT)
            # In this thread, because the server ends with the thread that starts it.
            own_postgres.start()
            with psycopg.connect(own_postgres.dsn(name), autocommit=True) as other:
                for _ in range(100):
                    # Each commit gets the next number, so one reuses the number of the lost transaction.
                    other.execute("SELECT pg_current_xact_id()")
        finally:
            back.set()
        written.result(60)
        assert len(calls) == 2, "a change that a crash undid is acknowledged, because its number was given out again"
        vault.close()


def test_marks_of_commits_are_kept_for_an_hour_alone(own_postgres: Postgres, name: str, shared: Vault) -> None:
    with psycopg.connect(own_postgres.dsn(name), autocommit=True) as other:
        other.execute("UPDATE commit_mark SET made = made - interval '61 minutes'")
        old = {mark for (mark,) in other.execute("SELECT mark FROM commit_mark")}
        Add(shared)("host")
        Add(shared)("another")
        left = {mark for (mark,) in other.execute("SELECT mark FROM commit_mark")}
    assert old
    assert len(left) == 2
    assert not left & old


def test_conflicts_are_repeated(own_postgres: Postgres, name: str, shared: Vault) -> None:
    trouble(own_postgres, name, "40001", times=3)
    id = Add(shared)("host")
    assert shared.connections.query("*", "host") == [id]


def test_a_server_that_is_away_is_named_to_the_owner_and_nobody_s_frames_are_kept(
    own_postgres: Postgres, name: str, shared: Vault
) -> None:
    errors = []
    own_postgres.halt()
    try:
        for _ in range(3):
            with pytest.raises(VaultUnavailable) as refused:
                shared.connections.query()
            errors.append(refused.value)
    finally:
        own_postgres.start()
    last = errors[-1]
    address = f"postgresql://connmgr@127.0.0.1:{own_postgres.port}/{name}"
    assert last.message == f"The vault's database {address} does not answer (Connection refused); try again."
    assert last.for_tokens == "The vault's database does not answer; try again."
    # An error that is raised again keeps the frames of whoever raised it before, and all that was in them.
    assert len(set(map(id, errors))) == 3
    depths = [len(list(traceback.walk_tb(error.__traceback__))) for error in errors]
    assert depths[0] >= depths[1] == depths[2], depths


def test_a_full_disk_of_the_server_is_told(own_postgres: Postgres, name: str, shared: Vault) -> None:
    trouble(own_postgres, name, "53100", times=1)
    with pytest.raises(VaultUnavailable, match="server's disk is full"):
        Add(shared)("host")
    assert shared.connections.query() == [LOCAL]
    assert Add(shared)("host")


def test_another_writer_is_waited_for_but_not_for_ever(
    own_postgres: Postgres, name: str, open_vault: OpenVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connmgr.vault.backends._SETTINGS", "SET lock_timeout = '50ms'")
    vault = open_vault(own_postgres.dsn(name))
    with psycopg.connect(own_postgres.dsn(name)) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        with pytest.raises(VaultUnavailable, match="Another daemon holds"):
            vault.database.write(lambda _: None, timeout=0.3)
        release = threading.Timer(0.3, other.rollback)
        release.start()
        Add(vault)("host")
        release.join()


def trouble(server: Postgres, name: str, state: str, times: int) -> None:
    """Let the first ``times`` insertions of a connection fail with an SQLSTATE."""
    with psycopg.connect(server.dsn(name)) as connection:
        connection.execute("CREATE SEQUENCE trouble")
        connection.execute(
            "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF nextval('trouble') <= {times} THEN RAISE EXCEPTION 'trouble' USING ERRCODE = '{state}'; END IF;"
            " RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER trouble BEFORE INSERT ON connection FOR EACH ROW EXECUTE FUNCTION trouble()")


class Unreliable:
    """A TCP relay to a port of this machine that can cut a connection at a commit."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._moment: str | None = None
        self._meanwhile: Callable[[], object] = lambda: None
        self.was_cut = threading.Event()
        self._pumps: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)

    def cut(self, moment: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Cut the next connection that commits, before the server receives the commit or after its answer.

        The client notices after ``meanwhile`` has returned.
        """
        self._moment, self._meanwhile = moment, meanwhile

    def __enter__(self) -> Unreliable:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for pump in self._pumps:
            pump.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._open += [client, server]
                self._pumps.append(threading.Thread(target=self._pump, args=[client, server]))
                self._pumps[-1].start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data or (end is client and self._cuts(data, server)):
                        return
                    (server if end is client else client).sendall(data)

    def _cuts(self, data: bytes, server: socket.socket) -> bool:
        moment, commits = self._moment, b"COMMIT\0" in data
        if moment is None or not commits:
            return False
        self._moment = None
        self.was_cut.set()
        if moment == "after":
            server.sendall(data)
            server.recv(65536)
        self._meanwhile()
        return True
