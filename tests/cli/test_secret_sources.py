"""Secrets from elsewhere on the command line: given, shown, exported and applied as references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.program import CommandLine


def test_what_is_exported_and_applied_is_the_reference(own_connmgr: CommandLine, tmp_path: Path) -> None:
    connmgr = own_connmgr
    source = {"source": "envFile", "file": str(tmp_path / "a.env"), "name": "A"}
    connmgr("add", "ssh", "web", "host=w", "--from", "password", json.dumps(source))
    vault = {"source": "vault", "url": "https://127.0.0.1:9", "path": "web"}
    token = {"from": {**source, "name": "TOKEN"}}
    connmgr("add", "ssh", "db", "host=d", "--from", "password", json.dumps({**vault, "token": token}))
    for wrong in ("hunter2", '{"entry": "a"}', "[1]"):
        refused = connmgr("add", "ssh", "x", "host=x", "--from", "password", wrong, code=2).errors
        assert "followed by a JSON object" in refused
    assert "not a secret" in connmgr("add", "ssh", "x", "--from", "host", json.dumps(source), code=2).errors
    assert "password.from.source" in connmgr("info", "web").output

    exported = connmgr("export").output
    assert "source: envFile" in exported
    file = tmp_path / "vault.yaml"
    file.write_text(exported)
    assert connmgr("apply", "-f", str(file), "--yes").output == "3 connections: 3 unchanged\n"

    file.write_text(exported.replace("name: A", "name: B"))
    connmgr("apply", "-f", str(file), "--yes")
    assert connmgr("info", "web", "--json").json["rawData"]["password"] == {"from": {**source, "name": "B"}}
    connmgr("edit", "web", "--from", "password", json.dumps(source))
    assert connmgr("info", "web", "--json").json["rawData"]["password"] == {"from": source}
    connmgr("edit", "web", "--secret", "password", stdin="hunter2\n")
    assert "encryptedToken" in connmgr("info", "web", "--json").json["rawData"]["password"]


def test_a_source_s_own_token_is_exported_as_kept(own_connmgr: CommandLine, tmp_path: Path) -> None:
    connmgr = own_connmgr
    data: dict[str, Any] = {"type": "ssh", "host": "w"}
    vault = {"source": "vault", "url": "https://127.0.0.1:9", "path": "web", "token": "hvs.hunter2"}
    connmgr.daemon.client.post("/connection/add", name="web", data={**data, "password": {"from": vault}})
    exported = connmgr("export").output
    assert "hunter2" not in exported
    assert "encryptedToken" not in exported
    assert "secret: kept" in exported
    file = tmp_path / "vault.yaml"
    file.write_text(exported.replace("path: web", "path: other"))
    connmgr("apply", "-f", str(file), "--yes")
    stored = connmgr("info", "web", "--json").json["rawData"]["password"]["from"]
    assert stored["path"] == "other"
    assert stored["token"].keys() == {"encryptedToken", "secret"}


def test_plugins_lists_the_sources(connmgr: CommandLine) -> None:
    listed = {one["source"] for one in connmgr("plugins", "--json").json["sources"]}
    assert listed == {"command", "pass", "envFile", "vault", "keyring", "op", "bw"}
