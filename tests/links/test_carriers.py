"""Many machines behind a gateway are reached over one link to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd")

BEHIND = 6


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    daemon = Daemon(tmp_path_factory.mktemp("carriers"))
    yield daemon.client
    daemon.stop()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Sshd]:
    (tmp_path / "gateway").mkdir()
    with ssh_server(tmp_path / "gateway") as server:
        yield server


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Sshd]:
    (tmp_path / "inner").mkdir()
    with ssh_server(tmp_path / "inner") as server:
        yield server


def add(client: Client, name: str, server: Sshd, **fields: Any) -> str:
    given = {"type": "ssh", **ssh_fields(server, server.user), **fields}
    return client.connection.add(name, {field: value for field, value in given.items() if value is not None})


def logins(server: Sshd) -> int:
    return server.log().count("Accepted publickey")


def test_all_links_behind_a_gateway_share_one_to_it(client: Client, gateway: Sshd, inner: Sshd) -> None:
    outer = add(client, "gate", gateway)
    behind = [add(client, f"behind{n}", inner, gateway=outer, connectTimeout=60 + n) for n in range(BEHIND)]
    before, inside = logins(gateway), logins(inner)
    outcomes = [one.result for one in client.shell.broadcast("echo $SSH_CONNECTION", behind)]
    assert {one.exit_code for one in outcomes} == {0}  # type: ignore[union-attr]
    assert (logins(gateway) - before, logins(inner) - inside) == (1, BEHIND)
    # It stays open until the last of them is gone.
    client.shell.stop(behind[0], all=True)
    assert client.shell.exec(behind[1], "echo on").stdout == "on"
    for one in behind[1:]:
        client.shell.stop(one, all=True)
    eventually(
        lambda: psutil.Process(gateway.pid).children(), "the link to the gateway stays", holds=lambda found: not found
    )


def test_a_gateway_that_forwards_an_agent_is_opened_anew_without_it(client: Client, gateway: Sshd, inner: Sshd) -> None:
    # No agent is there: a link to the gateway itself fails, one through it does not ask for any.
    outer = add(client, "forwarding", gateway, forwardAgent=True)
    behind = add(client, "behind", inner, gateway=outer)
    client.shell.start(behind)
    with pytest.raises(ClientError) as refused:
        client.shell.start(outer)
    assert refused.value.code == "auth_failed"


def test_errors_name_the_gateway_once_and_what_was_asked_for(client: Client, gateway: Sshd, inner: Sshd) -> None:
    first = add(client, "first", gateway, identity=None, password="wrong", agent=False)
    second = add(client, "second", inner, gateway=first)
    third = add(client, "third", inner, gateway=second, connectTimeout=61)
    with pytest.raises(ClientError) as refused:
        client.shell.start(third)
    assert refused.value.code == "auth_failed"
    assert refused.value.message.startswith("first: ")
    assert "second" not in refused.value.message
    assert [refused.value.details[name] for name in ("connection", "type", "opens")] == [first, "ssh", third]
