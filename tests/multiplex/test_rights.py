"""What the sockets of a token allow: what the token allows, and only as long as it is valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.multiplex.behind import Hosts, said
from tests.plugins.sshd import Sshd
from tests.rights.wire import create

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


@pytest.fixture
def owner(clean_connmgr: CommandLine, server: Sshd) -> Iterator[Hosts]:
    clean_connmgr.add_ssh("web", server)
    clean_connmgr.add_ssh("db", server, "gateway=web")
    yield Hosts(clean_connmgr)
    clean_connmgr.daemon.client.post("/multiplex/close")


def test_a_token_has_sockets_for_what_it_sees(owner: Hosts) -> None:
    holder = create(owner.connmgr.daemon, "shell.any", connections=["web"])
    own = Hosts(owner.connmgr, holder)
    assert list(own.paths) == ["web"]
    assert own.paths["web"] != owner.paths["web"]
    assert own.ssh("web", "echo by the token").stdout == b"by the token\n"
    assert holder.id in [one.get("token") for one in holder.ok("/multiplex/query")["sockets"]]
    assert {one.get("token") for one in owner.post("/multiplex/query")["sockets"]} == {None, holder.id}
    db = [owner.connmgr.daemon.client.connection.find("db")]
    assert holder.refused("/multiplex/open", connections=db) == "unknown_connection"


def test_a_token_without_commands_opens_none(owner: Hosts) -> None:
    assert create(owner.connmgr.daemon, "connection.read", "fs.read").refused("/multiplex/open") == "scope_denied"


def test_scopes_and_rules_decide_about_each_session(owner: Hosts) -> None:
    argv = Hosts(owner.connmgr, create(owner.connmgr.daemon, "shell.argv"))
    assert argv.ssh("web", "echo a plain argv").stdout == b"a plain argv\n"
    assert said(argv.ssh("web", "echo $HOME", code=255))[0].startswith("connmgr: ")
    assert said(argv.ssh("web", stdin=b"exit 0\n", code=255))[-1].startswith("connmgr: ")
    assert "tunnel" in said(argv.ssh("-W", "127.0.0.1:1", "web", code=255))[0]
    assert "refused forwarding request" in said(argv.ssh("-O", "forward", "-D", "1080", "web", code=255))[0]
    assert "terminal" in argv.ssh("-tt", "web", "uptime", code=255).stderr.decode()
    rules = [{"effect": "allow", "argv": ["uname", "-s"]}]
    bound = Hosts(owner.connmgr, create(owner.connmgr.daemon, "shell.argv", rules=rules))
    assert bound.ssh("web", "uname -s").stdout == b"Linux\n"
    assert "No rule of the token allows it" in said(bound.ssh("web", "uname -r", code=255))[0]
    assert "No rule of the token allows it" in said(bound.ssh("-s", "web", "sftp", code=255))[0]


def test_an_approval_is_asked_for_and_told(owner: Hosts) -> None:
    rules = [{"effect": "ask", "argv": ["uname", "-s"]}]
    holder = create(owner.connmgr.daemon, "shell.argv", rules=rules)
    asking = Hosts(owner.connmgr, holder)
    assert "asks for an approval" in said(asking.ssh("web", "uname -s", code=255))[0]
    waiting = owner.post("/approval/query")["approvals"]
    owner.post("/approval/decide", approval=waiting[0]["approval"], decision="once")
    assert asking.ssh("web", "uname -s").stdout == b"Linux\n"


def test_sockets_and_sessions_end_with_the_token(owner: Hosts) -> None:
    holder = create(owner.connmgr.daemon, "shell.any")
    own = Hosts(owner.connmgr, holder)
    with own.running("web", "echo ready; read line") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        owner.post("/token/revoke", id=holder.id)
        _, err = running.communicate(timeout=DEADLINE_SECONDS)
        assert running.returncode == 255
        assert err.startswith(b"connmgr: The token")
    assert not Path(own.paths["web"]).exists()
    assert b"connmgr" not in own.ssh("web", "true", code=255).stderr
    assert owner.ssh("web", "echo the owner goes on").stdout == b"the owner goes on\n"


def test_unix_sockets_are_for_tokens_that_may_run_anything(owner: Hosts, tmp_path: Path) -> None:
    def why(scopes: list[str], *words: str, **more: Any) -> str:
        own = Hosts(owner.connmgr, create(owner.connmgr.daemon, *scopes, "tunnel", **more))
        return said(own.ssh("-O", "forward", *words, "web", code=255))[0]

    assert "Unix sockets" in why(["shell.argv"], "-L", "18080:/run/app.sock")
    assert "Unix sockets" in why(["shell.any"], "-L", "18080:/run/app.sock", rules=[{"effect": "deny", "text": "rm"}])
    assert "daemon's machine" in why(["shell.any"], "-L", f"{tmp_path}/here:localhost:80", connections=["web"])
    assert "daemon's machine" in why(["shell.any"], "-R", "0:/run/app.sock", connections=["web"])


def test_a_token_that_expires_takes_its_sockets_along(owner: Hosts) -> None:
    own = Hosts(owner.connmgr, create(owner.connmgr.daemon, "shell.any", expires=5))
    eventually_equal(Path(own.paths["web"]).exists, False, "the socket outlives its token")
    own.ssh("web", "true", code=255)


def test_everything_is_in_the_audit_log(owner: Hosts) -> None:
    holder = create(owner.connmgr.daemon, "shell.any", "tunnel")
    own = Hosts(owner.connmgr, holder)
    own.ssh("web", "exit 3", code=3)
    own.ssh("-W", "127.0.0.1:1", "web", code=255)
    found = owner.post("/audit/query", token=holder.id)["entries"]
    piped = [one for one in found if one.get("action") == "shell.pipe"]
    assert any(one.get("exitCode") == 3 for one in piped)
    assert any(one.get("code") == "host_refused" for one in piped)


def test_a_removed_connection_takes_its_socket_along(owner: Hosts) -> None:
    db = [owner.connmgr.daemon.client.connection.find("db")]
    assert Path(owner.paths["db"]).exists()
    owner.post("/connection/remove", connections=db)
    assert not Path(owner.paths["db"]).exists()
    assert "db" not in {host for one in owner.post("/multiplex/query")["sockets"] for host in one["hosts"]}
