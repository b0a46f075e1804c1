"""``/store`` and its fields: the endpoints on connections under other names, equally strict."""

from __future__ import annotations

import pytest

from connmgr.client import ClientError
from tests.api.wire import LOCAL
from tests.daemon import Daemon


def _refusal(daemon: Daemon, path: str, **fields: object) -> str:
    with pytest.raises(ClientError) as refused:
        daemon.client.post(path, **fields)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    return refused.value.message


def test_every_endpoint_on_connections_has_its_second_path(daemon: Daemon) -> None:
    for path in ("query", "info", "add", "update", "remove", "refresh"):
        assert "Missing data" in _refusal(daemon, f"/store/{path}")
    assert daemon.client.post("/store/types") == daemon.client.post("/connection/types")


def test_each_path_accepts_only_its_own_field_names(daemon: Daemon) -> None:
    assert "connections: Unknown field" in _refusal(daemon, "/store/info", connections=[LOCAL])
    assert "stores: Unknown field" in _refusal(daemon, "/connection/info", stores=[LOCAL])


def test_stored_data_keep_their_field_names(daemon: Daemon) -> None:
    first = daemon.client.post("/connection/info", connections=[LOCAL])
    second = daemon.client.post("/store/info", stores=[LOCAL])
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    (one,), (other,) = first["infos"], second["infos"]
    assert other == {"store": one.pop("connection"), **one}


@pytest.mark.parametrize("path", ["/shell/start", "/shell/exec", "/shell/stop", "/fs/read", "/fs/write", "/fs/script"])
def test_shells_and_files_take_either_name_and_errors_use_the_one_given(daemon: Daemon, path: str) -> None:
    assert "store: Not a valid string" in _refusal(daemon, path, store=5)
    assert "connection: Not a valid string" in _refusal(daemon, path, connection=5)
    assert "connection: Missing data" in _refusal(daemon, path)
    assert "store: This is another name of connection" in _refusal(daemon, path, store=LOCAL, connection=LOCAL)


def test_shells_of_a_connection_are_listed_by_either_name(clean_daemon: Daemon) -> None:
    clean_daemon.client.post("/shell/start", store=LOCAL, session="one")
    for fields in ({"store": LOCAL}, {"connection": LOCAL}, {}):
        (shell,) = clean_daemon.client.post("/shell/list", **fields)["shells"]
        assert (shell["connection"], shell["session"]) == (LOCAL, "one")
    assert "store: Not a valid string" in _refusal(clean_daemon, "/shell/list", store=5)


def test_the_published_description_has_one_vocabulary(daemon: Daemon) -> None:
    import json
    import urllib.request

    with urllib.request.urlopen(f"{daemon.url}/openapi.json", timeout=30) as response:
        description = json.load(response)
    assert not [path for path in description["paths"] if path.startswith("/store")]
