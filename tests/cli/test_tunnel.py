"""``connmgr tunnel``: opening, listing and closing tunnels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.program import CommandLine
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


def test_what_is_no_place_is_said(clean_connmgr: CommandLine) -> None:
    assert "not of the form [HOST:]PORT" in clean_connmgr("tunnel", "local", "http", code=2).errors
    assert "No connection is called 'nowhere'" in clean_connmgr("tunnel", "nowhere", "80", code=5).errors
    assert "name a PORT" in clean_connmgr("tunnel", "local", "--local-port", "80", code=2).errors
    assert clean_connmgr("tunnel", "ls").output == ""
