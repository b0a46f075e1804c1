"""Ways around a token's limits, one test for each that was once open."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.api.wire import LOCAL, add, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.rights.wire import Holder, create
from tests.streams.wire import Stream

WRITES = ("connection.read", "connection.write")


def handshake(holder: Holder) -> Any:
    auth = {"type": "token", "token": holder.secret}
    return send(holder.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "test"}})


@pytest.mark.parametrize("more", [{}, {"shell": "/bin/bash"}])
def test_adding_a_local_connection_needs_sight_of_the_local_machine(daemon: Daemon, more: dict[str, str]) -> None:
    holder = create(daemon, *WRITES, "shell.any", connections=["web*"])
    data = {"type": "local", **more}
    assert holder.refused("/connection/add", name="web9", data=data, validate=False) == "scope_denied"
    applied = [{"name": "web9", "data": data}]
    assert holder.refused("/connection/apply", add=applied, change=[], remove=[]) == "scope_denied"


def test_a_token_that_may_run_nothing_does_not_choose_shells_or_init_commands(daemon: Daemon, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    runs = {"type": "shellEnvironment", "host": LOCAL, "commands": [f"touch {trace}"]}
    rules = [{"effect": "allow", "argv": ["/bin/true"]}]
    for holder in (create(daemon, *WRITES), create(daemon, *WRITES, "shell.any", rules=rules)):
        for data in (runs, {"type": "local", "shell": "/bin/bash"}):
            assert holder.refused("/connection/add", name="x", data=data, validate=True) == "scope_denied"
    assert not trace.exists()


def test_a_connection_that_others_out_of_sight_run_over_is_not_changed(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    apple = add(client, "apple", type="ssh", host="apple.example", user="ci")
    add(client, "root", type="shellEnvironment", elevated=True, host={"storeId": apple}, password="secret")
    holder = create(clean_daemon, *WRITES, connections=["apple", "pear", "pear/**"])
    assert holder.refused("/connection/update", connection=apple, name="pear") == "scope_denied"
    data = {"type": "ssh", "host": "evil.example", "user": "ci"}
    assert holder.refused("/connection/update", connection=apple, data=data) == "scope_denied"


def test_rules_for_certain_connections_are_not_escaped_by_names(clean_daemon: Daemon) -> None:
    prod = add(clean_daemon.client, "prod1", type="ssh", host="prod.example")
    rules = [{"effect": "deny", "argv": ["echo", {"rest": {"re": ".*"}}], "connections": ["prod*"]}]
    holder = create(clean_daemon, *WRITES, "shell.any", rules=rules)
    assert holder.refused("/connection/update", connection=prod, name="dev1") == "scope_denied"
    over = {"type": "shellEnvironment", "host": {"storeId": prod}}
    assert holder.refused("/connection/add", name="dev2", data=over, validate=False) == "scope_denied"


def test_adding_equal_data_reveals_no_password(clean_daemon: Daemon) -> None:
    data = {"type": "ssh", "host": "db.example", "user": "ci", "password": "right"}
    stored = add(clean_daemon.client, "db", **data)
    holder = create(clean_daemon, *WRITES)
    body = {"name": "guess", "data": data}
    assert holder.ok("/connection/add", **body, validate=False)["connection"] != stored
    [applied] = holder.ok("/connection/apply", add=[body], change=[], remove=[])["added"]
    assert applied["added"]
    knows = create(clean_daemon, *WRITES, "secret.decrypt")
    assert knows.ok("/connection/add", **body, validate=False)["connection"] == stored


def test_handshakes_count_for_the_quota_and_sessions_of_a_token_are_limited(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    holder = create(daemon, "connection.read", quotaPerDay=80)
    sessions = [handshake(holder).json["sessionToken"] for _ in range(80)]
    assert handshake(holder).code == "quota_exceeded"
    daemon.client.post("/token/query")
    first = send(daemon.url, "/daemon/version", {}, {"Authorization": f"Bearer {sessions[0]}"})
    assert first.code == "invalid_token", "a token may have 64 sessions at once"


def test_the_number_of_tokens_that_a_token_creates_is_limited(own_daemon: Daemon) -> None:
    parent = create(own_daemon, "token.create")
    for _ in range(100):
        parent.create()
    assert parent.refused("/token/create", name="x", expires=60, scopes=[]) == "token_limit"
    create(own_daemon, "job")


def test_a_token_without_the_scope_stops_no_terminals_of_others(own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    terminal = own_daemon.client.post("/terminal/open", connection=LOCAL)["terminal"]
    assert create(own_daemon, "fs.read").refused("/shell/stop", connection=LOCAL, all=True) == "scope_denied"
    listed = own_daemon.client.post("/terminal/query")["terminals"]
    assert [(one["terminal"], one["state"]) for one in listed] == [(terminal, "running")]


def test_another_token_s_job_is_not_found_by_its_key(clean_daemon: Daemon) -> None:
    clean_daemon.client.post("/shell/start", connection=LOCAL)
    holder = create(clean_daemon, "job", "shell.argv")
    wanted = {"connection": LOCAL, "argv": ["/bin/true"], "key": "nightly"}
    own = holder.ok("/job/start", **wanted)["job"]
    assert holder.ok("/job/start", **wanted)["job"] == own
    assert clean_daemon.client.post("/job/start", **wanted)["job"] != own


def test_one_request_that_waits_counts_once(clean_daemon: Daemon) -> None:
    clean_daemon.client.post("/shell/start", connection=LOCAL)
    holder = create(clean_daemon, "job", "shell.any", quotaPerDay=3)
    command = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done"
    job = holder.ok("/job/start", connection=LOCAL, command=command)["job"]
    at = time.monotonic()
    assert holder.ok("/job/wait", job=job, wait=25)["state"] == "exited"
    assert time.monotonic() - at < 20
    holder.ok("/daemon/version")
    assert holder.refused("/daemon/version") == "quota_exceeded"


def test_a_token_for_metrics_does_not_see_the_daemon_s_environment(daemon: Daemon) -> None:
    assert "environment" not in create(daemon, "metrics.read").ok("/daemon/status")
    assert daemon.client.post("/daemon/status")["environment"]["path"]


def tunnel_through(daemon: Daemon, **data: Any) -> tuple[str, dict[str, Any]]:
    """Store a machine that does not answer; return its uuid, and the data of a tunnel through it."""
    web = add(daemon.client, "web1", type="ssh", host="127.0.0.1", port=1, user="ci")
    return web, {"type": "sshLocalTunnel", "host": web, "remotePort": 80, **data}


@pytest.mark.parametrize("more", [{"autoStart": True}, {"bindAddress": "0.0.0.0"}, {"bindAddress": "::"}])
def test_a_token_adds_no_tunnel_that_outlives_it_or_that_other_machines_reach(
    clean_daemon: Daemon, more: dict[str, Any]
) -> None:
    _, data = tunnel_through(clean_daemon)
    holder = create(clean_daemon, *WRITES, "tunnel", connections=["web1", "web1/**"])
    tunnel = holder.ok("/connection/add", name="mine", data=data, validate=False)["connection"]
    worse = data | more
    assert holder.refused("/connection/add", name="worse", data=worse, validate=False) == "scope_denied"
    assert holder.refused("/connection/update", connection=tunnel, data=worse) == "scope_denied"
    for host in (data["host"], {"storeId": data["host"]}):
        asked = [{"name": "worse", "data": worse | {"host": host}}]
        assert holder.refused("/connection/apply", add=asked, change=[], remove=[]) == "scope_denied"


def test_a_tunnel_changed_by_a_token_is_not_reopened_for_its_earlier_opener(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    web, data = tunnel_through(clean_daemon)
    tunnel = add(client, "ours", **data)
    holder = create(clean_daemon, *WRITES, "tunnel", connections=["web1", "web1/**"])
    changes: list[dict[str, Any]] = [
        {"connection": tunnel, "data": data | {"remoteHost": "evil.example"}},
        {"connection": web, "data": {"type": "ssh", "host": "127.0.0.1", "port": 2, "user": "ci"}},
    ]
    for change in changes:
        client.post("/connection/toggle", connection=tunnel, state=True)
        holder.ok("/connection/update", **change)
        [told] = client.post("/tunnel/query", connections=[tunnel])["tunnels"]
        assert (told["state"], told["wanted"]) == ("stopped", False)
    holder.ok("/connection/toggle", connection=tunnel, state=True)
    holder.ok("/connection/update", connection=tunnel, data=data)
    [told] = client.post("/tunnel/query", connections=[tunnel])["tunnels"]
    assert told["wanted"], "what it has toggled itself goes on"


def test_a_token_with_rules_starts_and_stops_no_container(clean_daemon: Daemon) -> None:
    container = add(clean_daemon.client, "web", type="docker", host=LOCAL, containerName="web")
    rules = [{"effect": "allow", "argv": ["/bin/true"]}]
    for effect in ("allow", "ask"):
        holder = create(clean_daemon, "shell.any", rules=[{**rules[0], "effect": effect}])
        assert holder.refused("/connection/toggle", connection=container, state=False) == "scope_denied"


@pytest.mark.needs("sshd")
def test_identity_files_tell_a_token_nothing_of_the_daemons_machine(own_daemon: Daemon, tmp_path: Path) -> None:
    with ssh_server(tmp_path) as server:
        fields = ssh_fields(server, server.user)
        for name, content in {"no-key": "text", "empty": "", "public.pub": "ssh-ed25519 AAAA"}.items():
            (tmp_path / name).write_text(content)
        (tmp_path / "open").write_text("key that others may read")
        (tmp_path / "open").chmod(0o644)
        key = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "stranger")], check=True
        )
        assert key.returncode == 0
        names = ["missing", "no-key", "empty", "public.pub", "open", "stranger", ".", "missing/below"]
        holder = create(own_daemon, "connection.write", "connection.read", "shell.any")
        own_daemon.client.shell.start(LOCAL)
        told, owner = set(), set()
        for name in names:
            data = {**fields, "type": "ssh", "identity": {"file": str(tmp_path / name)}}
            body = {"name": name, "data": data, "validate": True}
            answer = holder.send("/connection/add", **body)
            told.add((answer.status, answer.body))
            id = holder.ok("/connection/add", **{**body, "validate": False})["connection"]
            started = holder.send("/shell/exec", connection=id, command="true", start=True)
            assert started.code == "auth_failed"
            told.add((answer.status, json.dumps({"message": started.json["error"]["message"], "code": "auth_failed"})))
            lines = holder.send("/shell/broadcast", connections=[id], command="true").body
            assert str(tmp_path) not in lines.decode()
            with pytest.raises(ClientError) as error:
                own_daemon.client.post("/shell/start", connection=id)
            owner.add(error.value.message)
            shown = holder.ok("/connection/info", connections=[id], dialled=True)["infos"][0]["dialled"]
            assert shown["hosts"][0]["identities"] == []
        assert len({json.loads(body)["message"] for _, body in told}) == 1, told
        assert str(tmp_path) not in str(told)
        assert len(owner) > 3, "the owner no longer sees the reasons"


def test_a_tcp_stream_needs_the_scope_of_tunnels_and_a_token_that_may_change_something(
    daemon: Daemon, closed_port: int
) -> None:
    def code(*scopes: str, **limits: Any) -> str:
        holder = create(daemon, *scopes, **limits)
        stream = Stream(daemon.url, "/shell/pipe", holder.secret)
        ended = stream.ask(connection=LOCAL, tcp={"host": "127.0.0.1", "port": closed_port}).finish()
        return str(ended.error["code"])

    assert code("tunnel") == "host_refused"
    assert code("tunnel", rules=[{"effect": "allow", "argv": ["true"]}]) == "host_refused", "it runs no command"
    assert code("shell.any", "shell.argv") == "scope_denied"
    assert code("tunnel", "shell.any", readOnly=True) == "scope_denied"
