"""``connmgr tunnel``: opening, listing and closing tunnels."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.program import CommandLine
from tests.ports import reserved_port
from tests.tunnels.services import Service, echo, says


@pytest.fixture
def service() -> Iterator[Service]:
    with closing(Service(echo)) as running:
        yield running


def test_a_port_of_a_machine_is_a_port_here(clean_connmgr: CommandLine, service: Service) -> None:
    connmgr = clean_connmgr
    place = f"127.0.0.1:{service.port}"
    told = connmgr("tunnel", "local", place).output
    assert told == f"services/{place}  open  127.0.0.1:{service.port}\n"
    assert connmgr("tunnel", "open", "local", place).output == told
    assert says(service.port) == b"hello"
    heading, row = connmgr("tunnel", "ls").output.splitlines()
    assert heading.split() == ["NAME", "STATE", "ADDRESS", "STREAMS", "IN", "OUT", "LAST", "ERROR"]
    assert re.fullmatch(rf"services/{place} +open +127.0.0.1:{service.port} +0 +0 B +0 B +-", row), row
    assert [one["state"] for one in connmgr("tunnel", "ls", "--json").json] == ["open"]
    assert connmgr("tunnel", "close", place).output == f"services/{place}  stopped  -\n"
    assert connmgr("tunnel", place).output == told


def test_impossible_tunnels_are_reported(clean_connmgr: CommandLine) -> None:
    assert "not of the form [HOST:]PORT" in clean_connmgr("tunnel", "local", "http", code=2).errors
    assert "No connection is called 'nowhere'" in clean_connmgr("tunnel", "nowhere", "80", code=5).errors
    assert "--local-port needs a PORT" in clean_connmgr("tunnel", "local", "--local-port", "80", code=2).errors
    assert clean_connmgr("tunnel", "ls").output == ""
    for verb in ("open", "close"):
        refusal = clean_connmgr("tunnel", verb, "local", code=1).errors
        assert "local machine is a connection of type local, not a tunnel" in refusal
        assert "Did you mean" not in clean_connmgr("tunnel", verb, "loca", code=5).errors, "it would be refused"


def test_the_same_service_asked_for_twice_is_one_tunnel(clean_connmgr: CommandLine, service: Service) -> None:
    connmgr = clean_connmgr
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    first = connmgr("tunnel", "local", str(service.port), "--local-port", str(port)).output
    assert first.endswith(f"open  127.0.0.1:{port}\n")
    for place in (str(service.port), f"localhost:{service.port}", f"LOCALHOST:{service.port}"):
        assert connmgr("tunnel", "local", place).output == first, place
    assert connmgr("tunnel", "local", str(service.port), "--local-port", str(port)).output == first
    assert len(connmgr("tunnel", "ls", "--json").json) == 1


def test_the_same_service_from_another_port_has_another_name(clean_connmgr: CommandLine, service: Service) -> None:
    far = str(service.port)
    clean_connmgr("tunnel", "local", far)
    with reserved_port() as port:
        name = f"{far}-{port}"
        second = clean_connmgr("tunnel", "local", far, "--local-port", str(port)).output
        assert second == f"services/{name}  open  127.0.0.1:{port}\n"
        assert clean_connmgr("tunnel", "close", name).output.startswith(f"services/{name}  stopped")
    assert clean_connmgr("tunnel", "close", far).output.startswith(f"services/{far}  stopped")


def test_a_new_tunnel_that_cannot_be_opened_is_stored_only_on_request(clean_connmgr: CommandLine) -> None:
    connmgr = clean_connmgr
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        refused = connmgr("tunnel", "local", "80", "--local-port", port, code=1).errors
        assert f":{port}: another program listens there" in refused
        assert "--keep" in refused
        assert connmgr("tunnel", "ls", "--json").json == []
    connmgr("add", "ssh", "gone", "host=127.0.0.1", "port=1")
    refused = connmgr("tunnel", "gone", "80", code=1).errors
    assert "127.0.0.1" in refused
    assert "--keep" in refused
    assert connmgr("tunnel", "ls", "--json").json == []
    assert "retrying" in connmgr("tunnel", "gone", "80", "--keep").output
    assert len(connmgr("tunnel", "ls", "--json").json) == 1
    # A stored one stays stored.
    assert "retrying" in connmgr("tunnel", "gone", "80").output
