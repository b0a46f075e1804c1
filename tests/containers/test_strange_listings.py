"""A refresh of a host whose runtime is a script with hostile listings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError, Refreshed
from tests.api.wire import LOCAL, add
from tests.conftest import StartDaemon
from tests.daemon import Daemon


class Runtime:
    """A daemon on a machine with a scripted ``docker``, and a connection to its containers."""

    def __init__(self, daemon: Daemon, listing: Path) -> None:
        self.client = daemon.client
        self._listing = listing
        self.host: str = self._add("containers", type="dockerHost", host=LOCAL)

    def _add(self, name: str, **data: Any) -> str:
        return add(self.client, name, **data)

    def lists(self, text: str) -> Refreshed:
        """Let the program print ``text``, and refresh the host."""
        self._listing.write_text(text)
        return self.client.connection.refresh(self.host)

    def has(self, *names: str) -> Refreshed:
        """Let the program list these containers, and refresh the host."""
        return self.lists("".join(json.dumps({"Names": one, "State": "running"}) + "\n" for one in names))

    def add(self, name: str, **data: Any) -> str:
        """Store a connection to a container."""
        return self._add(name, type="docker", host=self.host, **data)

    def state(self, id: str) -> Any:
        """Return the description of a container's connection."""
        [info] = self.client.post("/connection/info", connections=[id])["infos"]
        return info["state"]


@pytest.fixture
def runtime(start_daemon: StartDaemon, tmp_path: Path) -> Runtime:
    program, listing = tmp_path / "docker", tmp_path / "listing"
    program.write_text(f"#!/bin/sh\nexec cat {listing}\n")
    program.chmod(0o755)
    daemon = start_daemon(environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    return Runtime(daemon, listing)


def test_an_edited_connection_stays_the_one_of_its_container(runtime: Runtime) -> None:
    [web] = runtime.has("web").added
    changed = {"type": "docker", "host": runtime.host, "containerName": "web", "user": "www-data"}
    runtime.client.post("/connection/update", connection=web, name="site", data=changed)
    by_hand = runtime.add("again", containerName="web", workdir="/srv")
    elsewhere = runtime.add("elsewhere", containerName="web", context="other")
    assert runtime.has("web") == Refreshed(added=[], gone=[], skipped=[])
    assert [runtime.state(one) for one in (web, by_hand, elsewhere)] == [{"running": True}, {"running": True}, {}]
    [stored] = runtime.client.post("/connection/info", connections=[web])["infos"]
    assert (stored["name"][-1], stored["rawData"]["user"]) == ("site", "www-data")
    found = runtime.has("db")
    assert (len(found.added), sorted(found.gone)) == (1, sorted([web, by_hand]))


def test_no_name_is_an_option_a_path_or_a_line(runtime: Runtime) -> None:
    strange = ("--privileged", "-H", "a b", "a\nb", "a/b", "../a", "a\x1b[2Jb", "\u202eweb", "", "a\0b", "a" * 256)
    found = runtime.has("before", *strange, "after")
    assert (len(found.added), found.gone, len(found.skipped)) == (2, [], len(strange)), found.skipped
    assert not {"\x1b", "\u202e", "\n", "\0"} & set("".join(found.skipped))
    assert len(runtime.client.connection.names()) == 2 + len(found.added), "one was stored"


def test_a_malformed_listing_is_reported(runtime: Runtime) -> None:
    for listing in ("[" * 100_000, '{"Names":"a","State":' + "[" * 100_000, '{"Names":7,"State":1}', "x"):
        with pytest.raises(ClientError, match="docker printed a list of an unknown format"):
            runtime.lists(listing)


def test_there_are_not_more_than_can_be_shown(runtime: Runtime) -> None:
    with pytest.raises(ClientError, match="more than 10,000 systems inside"):
        runtime.has(*map(str, range(20_000)))
    assert len(runtime.client.connection.names()) == 2, "some were stored"
