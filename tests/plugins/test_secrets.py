"""Secrets and references of a third-party type, anywhere in its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon
from tests.plugins.strangers import install

SOURCE = """
import json
from marshmallow import fields
from connmgr.errors import ShellStartFailed
from connmgr.plugin import ConnectionType, List, Nested, Reference, Schema, Secret, Text, hookimpl

class Login(Schema):
    user = Text()
    password = Secret(allow_none=True)

class Places(Schema):
    top = Secret()
    object = Nested(Login)
    objects = Nested(Login, many=True)
    listing = Nested(Login(many=True))
    list = List(Secret(allow_none=True))
    list_of_objects = List(Nested(Login))
    list_of_lists = List(List(Secret()))
    dict = fields.Dict(keys=Text(), values=Secret())
    dict_of_objects = fields.Dict(keys=Text(), values=Nested(Login))
    tuple = fields.Tuple((Text(), Secret()))
    anything = fields.Dict()
    host = Reference()
    hosts = List(Reference())

class Keeper(ConnectionType):
    name = "keeper"
    description = "Keeps secrets in many places."
    schema = Places
    via = "host"

    def open(self, data, via, *, timeout):
        raise ShellStartFailed(json.dumps(data))

@hookimpl
def connmgr_connection_types():
    return [Keeper()]
"""

LOGIN = {"user": "ann", "password": "hunter2"}
PLACES: dict[str, Any] = {
    "top": "hunter2",
    "object": LOGIN,
    "objects": [LOGIN, LOGIN],
    "listing": [LOGIN],
    "list": ["hunter2", None],
    "list_of_objects": [LOGIN, {"user": "bob", "password": None}],
    "list_of_lists": [["hunter2"], []],
    "dict": {"x": "hunter2"},
    "dict_of_objects": {"x": LOGIN},
    "tuple": ["ann", "hunter2"],
    "anything": {"x": [1]},
}


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a type that has secrets in many places."""
    site = tmp_path_factory.mktemp("site")
    install(site, SOURCE, "connmgr-keeper")
    running = Daemon(tmp_path_factory.mktemp("keeper"), environment={"PYTHONPATH": str(site)})
    yield running
    running.stop()


def add(client: Client, name: str, data: dict[str, Any]) -> str:
    return str(client.post("/connection/add", name=name, data={"type": "keeper", **data})["connection"])


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_sealed_and_opened_wherever_it_is(keeper: Daemon, place: str) -> None:
    data = {place: PLACES[place]}
    id = add(keeper.client, "kept", data)
    told = keeper.client.post("/connection/info", connections=[id])["infos"][0]["rawData"]
    assert "hunter2" not in json.dumps(told), "a client is told a secret in plain"
    files = [path for path in keeper.data_dir.iterdir() if path.is_file()]
    assert [path.name for path in files if b"hunter2" in path.read_bytes()] == [], "a secret is stored in plain"
    assert add(keeper.client, "the same", data) == id, "data that is equal, secrets included, was added again"
    assert add(keeper.client, "sent back", {place: told[place]}) == id
    with pytest.raises(ClientError) as opened:
        keeper.client.post("/shell/start", connection=id)
    assert json.loads(opened.value.message) == data, "the type was not given its secrets in plain"


def test_a_connection_that_is_named_within_a_list_takes_along_what_names_it(keeper: Daemon) -> None:
    host = add(keeper.client, "host", {})
    id = add(keeper.client, "guest", {"hosts": [host]})
    keeper.client.post("/connection/remove", connections=[host])
    found = keeper.client.post("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="keeper")
    assert id not in found["found"]
