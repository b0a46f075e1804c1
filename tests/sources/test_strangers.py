"""A secret source of somebody else's plugin: found, checked, asked once for many, and never quoted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connmgr.client import Client, ClientError
from tests.conftest import StartDaemon
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd, privilege_separation
from tests.plugins.strangers import install

SOURCE = """
import time
from pathlib import Path
from connmgr.errors import SecretUnavailable
from connmgr.plugin import Schema, Secret, SecretSource, Text, hookimpl

class DrawerSchema(Schema):
    directory = Text(required=True)
    pin = Secret()

class Drawer(SecretSource):
    name = "drawer"
    description = "A drawer."
    schema = DrawerSchema
    example = {"directory": "/srv"}

    def fetch(self, data, deadline):
        drawer = Path(data["directory"])
        with (drawer / "log").open("a") as log:
            log.write("opened\\n")
        # Until all who ask at once do so.
        while not (drawer / "go").exists():
            if deadline.passed:
                raise SecretUnavailable("The secret source drawer is stuck.")
            time.sleep(0.01)
        if data.get("pin") != "1234":
            raise ValueError(f"{data.get('pin')} is wrong for {(drawer / 'key').read_text()}")
        return (drawer / "key").read_text()

@hookimpl
def connmgr_secret_sources():
    return [Drawer()]
"""

LINKS = 10


@pytest.mark.needs("sshd")
def test_a_stranger_s_source_is_asked_once_for_many_links(start_daemon: StartDaemon, tmp_path: Path) -> None:
    install(tmp_path / "site", SOURCE, "acme-drawers")
    daemon = start_daemon(environment={"PYTHONPATH": str(tmp_path / "site")})
    log, go = tmp_path / "log", tmp_path / "go"
    with privilege_separation():
        sshd = Sshd()
        try:
            (tmp_path / "key").write_text(sshd.client_key.read_text())

            def added(number: int, **members: str) -> str:
                reference = {"from": {"source": "drawer", "directory": str(tmp_path), **members}}
                data = {"type": "ssh", **ssh_fields(sshd, sshd.user), "identity": {"key": reference}}
                return daemon.client.connection.add(f"web{number}", {**data, "keepAlive": 20 + number})

            with pytest.raises(ClientError, match="drawers: Unknown field"):
                added(0, drawers="another")
            ids = [added(number, pin="1234") for number in range(LINKS)]
            # The pin is sealed as any secret.
            assert "1234" not in str(daemon.client.connection.info(ids[:1])[0].data)

            def log_in(id: str) -> None:
                with Client(daemon.url, auth_file=daemon.auth_file) as client:
                    client.shell.start(id)

            with ThreadPoolExecutor(LINKS) as pool:
                logins = [pool.submit(log_in, id) for id in ids]
                go.touch()
                for login in logins:
                    login.result()
            shared = log.read_text().count("opened")
            assert 1 <= shared <= LINKS
            wrong = added(LINKS, pin="4321")
            with pytest.raises(ClientError) as failed:
                daemon.client.shell.start(wrong)
            assert failed.value.code == "secret_unavailable"
            assert "The secret source drawer failed (ValueError)." in failed.value.message
            assert not any(secret in failed.value.message for secret in ("4321", "PRIVATE"))
            assert "PRIVATE" not in daemon.stderr()
            go.unlink()
            stuck = added(LINKS + 1, pin="1234")
            daemon.client.connection.update(stuck, data={**_plain(daemon.client, stuck), "connectTimeout": 1})
            with pytest.raises(ClientError) as late:
                daemon.client.shell.start(stuck)
            assert late.value.code in ("secret_unavailable", "connect_timeout")
        finally:
            sshd.close()


def _plain(client: Client, id: str) -> dict[str, object]:
    info = client.connection.info([id])[0]
    return {"type": info.type, **info.data}
