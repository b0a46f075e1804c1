"""/fs over HTTP: streams, their ends, and malformed requests."""

from __future__ import annotations

import base64
import http.client
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.api.wire import LOCAL, NOBODY
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.fs.remote_hosts import ODD_NAMES, names_in
from tests.fs.wire import Caller

MEBIBYTE = 1 << 20


def path_of(name: bytes) -> str | dict[str, str]:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(name).decode()}


def test_a_round_trip_of_every_endpoint(caller: Caller, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "directory"
    made = caller.post("/fs/mkdir", connection=LOCAL, path=str(directory), mode="0750", parents=True)
    assert made.status == 200
    assert caller.write(directory / "file", b"content", mode="640").status == 200
    described = caller.post("/fs/stat", connection=LOCAL, path=str(directory / "file")).json
    assert set(described) == {"name", "type", "size", "mode", "modified", "uid", "gid", "owner", "group", "target"}
    assert (described["size"], described["mode"], described["target"]) == (7, "0640", None)
    moved = caller.post("/fs/move", connection=LOCAL, source=str(directory / "file"), target=str(directory / "other"))
    assert moved.status == 200
    (entry,) = caller.post("/fs/list", connection=LOCAL, path=str(directory)).json["entries"]
    assert entry == {**described, "name": "other"}
    answer = caller.read(directory / "other")
    assert (answer.headers["Content-Type"], answer.headers["Content-Length"]) == ("application/octet-stream", "7")
    assert answer.body == b"content"
    removed = caller.post("/fs/remove", connection=LOCAL, path=str(tmp_path / "new"), recursive=True)
    assert removed.status == 200
    assert names_in(tmp_path) == []


def test_names_that_are_not_text_travel_in_base64(caller: Caller, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        path = path_of(bytes(tmp_path) + b"/" + name)
        blob = caller.blob(name)
        assert caller.post("/fs/write", connection=LOCAL, blob=blob, path=path).status == 200
        assert caller.post("/fs/read", connection=LOCAL, path=path).body == name
    entries = caller.post("/fs/list", connection=LOCAL, path=str(tmp_path)).json["entries"]
    assert [entry["name"] for entry in entries] == [path_of(name) for name in sorted(ODD_NAMES)]


def test_a_script_runs_and_goes_with_its_shell(clean_daemon: Daemon) -> None:
    caller = Caller(clean_daemon)
    caller.start()
    blob = caller.blob(b'#!/bin/sh\necho "$# arguments"\n')
    paths = [caller.post("/fs/script", connection=LOCAL, blob=blob).json["path"] for _ in range(2)]
    assert paths[0] != paths[1]
    ran = caller.post("/shell/exec", connection=LOCAL, command=f"'{paths[0]}' a b").json
    assert ran == {"exitCode": 0, "stdout": "2 arguments", "stderr": ""}
    assert Path(paths[0]).stat().st_mode & 0o7777 == 0o700
    assert caller.post("/shell/stop", connection=LOCAL).status == 200
    assert not any(Path(path).parent.exists() for path in paths)


def test_relative_names_begin_at_the_session_s_directory(clean_daemon: Daemon, tmp_path: Path) -> None:
    caller = Caller(clean_daemon)
    caller.start()
    odd = tmp_path / "it's a\nplace"
    odd.mkdir()
    command = f"cd '{tmp_path}' && cd *place"
    assert caller.post("/shell/exec", connection=LOCAL, command=command).json["exitCode"] == 0
    # File operations do not use the session's variables.
    assert caller.post("/shell/exec", connection=LOCAL, command="PATH= HOME=/nowhere; export PATH HOME").status == 200
    blob = caller.blob(b"content")
    assert caller.post("/fs/write", connection=LOCAL, blob=blob, path="file").status == 200
    assert (odd / "file").read_bytes() == b"content"
    assert caller.post("/fs/read", connection=LOCAL, path="./file").body == b"content"
    assert caller.post("/fs/list", connection=LOCAL, path=".").json["entries"][0]["name"] == "file"


BAD_PATHS = [None, 7, True, [], {}, "", "a\0b", "x" * 8193, "\ud800", {"base64": "*"}, {"base64": ""}, {"base64": 7}]
BAD_PATHS += [{"base64": "YQBi"}, {"base64": "YQ"}, {"base64": "YQ==", "more": 1}, {"hex": "61"}]  # type: ignore[list-item]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/fs/read": {},
    "/fs/list": {},
    "/fs/stat": {},
    "/fs/remove": {},
    "/fs/mkdir": {},
    "/fs/write": {"blob": NOBODY},
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_bad_path_is_refused_by_its_name(caller: Caller, endpoint: str) -> None:
    for path in BAD_PATHS:
        refused = caller.post(endpoint, connection=LOCAL, path=path, **ENDPOINTS[endpoint])
        assert (refused.status, refused.code) == (400, "invalid_request"), path
        assert "path" in refused.message, path
    refused = caller.post(endpoint, connection=LOCAL, **ENDPOINTS[endpoint])
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert "path" in refused.message


BAD_FIELDS = [
    ("/fs/write", {"blob": NOBODY, "mode": mode}, "mode")
    for mode in (644, "rw", "0o644", "08", "99999", "77777", "-1", "", " 644", "٦٤٤", None, True)
]
BAD_FIELDS += [
    ("/fs/write", {"blob": 7}, "blob"),
    ("/fs/write", {"blob": NOBODY, "append": True}, "append"),
    ("/fs/mkdir", {"parents": 1}, "parents"),
    ("/fs/mkdir", {"mode": 493}, "mode"),
    ("/fs/remove", {"recursive": "yes"}, "recursive"),
    ("/fs/stat", {"follow": None}, "follow"),
    ("/fs/read", {"offset": 1}, "offset"),
    ("/fs/list", {"connection": 1}, "connection"),
]


@pytest.mark.parametrize(("endpoint", "fields", "name"), BAD_FIELDS)
def test_a_bad_field_is_refused_by_its_name(caller: Caller, endpoint: str, fields: dict[str, Any], name: str) -> None:
    refused = caller.post(endpoint, **{"connection": LOCAL, "path": "/nowhere", **fields})
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert name in refused.message


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_connections_that_are_not_there_or_have_no_shell(clean_daemon: Daemon, endpoint: str) -> None:
    caller = Caller(clean_daemon)
    fields = {"path": "/tmp", "blob": caller.blob(b"")} if endpoint == "/fs/write" else {"path": "/tmp"}
    unknown = caller.post(endpoint, connection=NOBODY, **fields)
    assert (unknown.status, unknown.code, unknown.message) == (
        400,
        "unknown_connection",
        f"Unknown connection: {NOBODY}",
    )
    stopped = caller.post(endpoint, connection=LOCAL, **fields)
    assert (stopped.status, stopped.code) == (400, "no_shell")


def test_a_file_that_does_not_exist(caller: Caller, tmp_path: Path) -> None:
    answer = caller.read(tmp_path / "missing")
    assert (answer.status, answer.json) == (
        400,
        {"message": f"{tmp_path}/missing: File does not exist", "code": "no_such_file"},
    )
    assert answer.headers["Content-Type"] == "application/json"


def children(daemon: Daemon) -> set[int]:
    return {child.pid for child in psutil.Process(daemon.pid).children(recursive=True)}


def test_a_client_that_leaves_during_a_download_frees_its_slot_and_the_process(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--threads", "1")
    caller = Caller(daemon)
    caller.start()
    (tmp_path / "small").write_bytes(b"content")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 33)
    # The helper stays open for the next operation.
    assert caller.read(tmp_path / "small").body == b"content"
    before = len(children(daemon))
    for _ in range(3):
        with caller.reading(tmp_path / "large") as response:
            assert int(response.headers["Content-Length"]) == 1 << 33
            assert response.read(100_000) == bytes(100_000)
            busy = caller.read(tmp_path / "small")
            assert (busy.status, busy.code) == (503, "busy"), "a download takes no slot"
        eventually_equal(lambda: caller.read(tmp_path / "small").body, b"content", "the slot is not freed")
        eventually_equal(lambda: len(children(daemon)), before, "the process of a download lives on")


@pytest.mark.parametrize("size", [0, 100, 3 * MEBIBYTE])
def test_a_client_that_has_the_whole_file_finds_its_slot_free(
    start_daemon: StartDaemon, tmp_path: Path, size: int
) -> None:
    caller = Caller(start_daemon("--threads", "1"))
    caller.start()
    (tmp_path / "file").write_bytes(bytes(size))
    answers = [caller.read(tmp_path / "file") for _ in range(20)]
    assert [(answer.status, len(answer.body)) for answer in answers] == [(200, size)] * 20


def test_a_file_that_shrinks_ends_the_connection_early(caller: Caller, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(64 * MEBIBYTE)
        with caller.reading(tmp_path / "file") as response:
            assert len(response.read(MEBIBYTE)) == MEBIBYTE
            file.truncate(0)
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                response.read()


def test_a_file_that_grows_is_read_as_long_as_it_was(caller: Caller, tmp_path: Path) -> None:
    content = os.urandom(8 * MEBIBYTE)
    (tmp_path / "file").write_bytes(content)
    with caller.reading(tmp_path / "file") as response, (tmp_path / "file").open("ab") as file:
        first = response.read(1)
        file.write(b"more")
        file.flush()
        assert first + response.read() == content


def test_a_file_that_is_replaced_is_read_as_it_was(caller: Caller, tmp_path: Path) -> None:
    content = b"old" * (4 * MEBIBYTE)
    (tmp_path / "file").write_bytes(content)
    with caller.reading(tmp_path / "file") as response:
        first = response.read(1)
        assert caller.write(tmp_path / "file", b"new").status == 200
        assert first + response.read() == content
