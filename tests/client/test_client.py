"""``connmgr.client``: typed results, errors, sessions, and broken requests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from connmgr import paths
from connmgr.client import (
    DEFAULT_CATEGORY,
    LOCAL_MACHINE,
    ROOT_CATEGORY,
    AccessDenied,
    BadCredential,
    Client,
    ClientError,
    RawResult,
    Result,
    Unreachable,
)
from connmgr.client.jobs import Job
from tests.cli.program import run
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import given_time

OF_NO_CLIENT = {"/handshake", "/metrics", "/event/ticket", "/web/login"}
"""What a client does by itself, and what only Prometheus or a browser asks for."""

SSH = {"type": "ssh", "host": "web.example", "user": "me", "password": "hunter2"}


@pytest.fixture
def client(clean_daemon: Daemon) -> Iterator[Client]:
    with Client(clean_daemon.url, auth_file=clean_daemon.auth_file) as made:
        yield made


def test_every_endpoint_of_the_daemon_is_a_method(client: Client) -> None:
    import json
    import urllib.request

    with urllib.request.urlopen(f"{client.base_url}/openapi.json", timeout=30) as response:
        routes = {path for path in json.load(response)["paths"] if path not in OF_NO_CLIENT}
    methods = {
        "/vault/user/add": "vault.add_user",
        "/vault/user/passphrase": "vault.change_passphrase",
        "/vault/user/remove": "vault.remove_user",
        "/vault/recovery/create": "vault.create_recovery",
        "/vault/recovery/query": "vault.recoveries",
        "/vault/recovery/use": "vault.recover",
        "/vault/recovery/rotate": "vault.rotate_recovery",
        "/vault/recovery/revoke": "vault.revoke_recovery",
    }
    plural = {"run": "runs", "schedule": "schedules", "inventory": "inventories"}
    missing = []
    for route in routes - {"/event/stream"}:
        group, _, name = methods.get(route, route.partition("/{")[0].strip("/").replace("/", ".")).partition(".")
        owners = (client.jobs, Job) if group == "job" else (getattr(client, plural.get(group, group), None),)
        if not any(callable(getattr(owner, name, None)) for owner in owners):
            missing.append(route)
    assert missing == []
    assert callable(client.events)


def test_control_sockets_are_opened_listed_and_closed(client: Client) -> None:
    [opened] = client.multiplex.open([LOCAL_MACHINE])
    assert Path(opened.path).is_socket()
    assert client.multiplex.query() == [opened]
    client.multiplex.renew(LOCAL_MACHINE)
    host, port = client.multiplex.forward(LOCAL_MACHINE, 0, kind="dynamic")
    assert (host, port > 0) == ("127.0.0.1", True)
    with pytest.raises(ClientError, match="No such forward"):
        client.multiplex.cancel(LOCAL_MACHINE, 1, ("127.0.0.1", 1))
    assert client.multiplex.close([LOCAL_MACHINE]) == 1
    assert not Path(opened.path).exists()


def test_a_configuration_for_ssh_is_made_kept_and_forgotten(client: Client) -> None:
    made = client.multiplex.config(["connmgr"], filters=[], connections=[LOCAL_MACHINE])
    assert "Host local" in made.text
    kept = client.multiplex.keep(["connmgr"], filters=[], connections=[LOCAL_MACHINE])
    assert [one.names for one in kept.hosts] == [one.names for one in made.hosts] != []
    assert Path(kept.file).is_file()
    assert client.multiplex.forget() == kept.file
    assert not Path(kept.file).exists()
    assert client.multiplex.forget() is None


def test_categories(client: Client) -> None:
    id = client.category.add("Customers", ROOT_CATEGORY)
    assert set(client.category.query()) == {ROOT_CATEGORY, DEFAULT_CATEGORY, id}
    (found,) = client.category.info([id])
    assert (found.id, found.parent, found.name) == (id, ROOT_CATEGORY, ("all connections", "customers"))
    assert found.last_modified <= datetime.now(timezone.utc)
    client.category.remove([id])
    with pytest.raises(ClientError) as refusal:
        client.category.info([id])
    assert (refusal.value.code, refusal.value.status) == ("unknown_category", 400)


def test_connections(client: Client) -> None:
    id = client.connection.add("Web", SSH, category=client.category.add("x", ROOT_CATEGORY))
    assert client.connection.query("w*", category="x", type="ssh") == [id]
    (found,) = client.connection.info([id])
    assert (found.path, found.category, found.type, found.usage) == ("web", ("x",), "ssh", "shell")
    assert found.data["host"] == "web.example"
    assert "type" not in found.data
    assert client.secret.decrypt(found.data["password"]) == "hunter2"
    client.connection.update(id, name="www", category=DEFAULT_CATEGORY)
    assert client.connection.info([id])[0].name == ("www",)
    assert client.connection.info([id])[0].data == found.data
    client.connection.refresh(LOCAL_MACHINE)
    assert client.connection.info([LOCAL_MACHINE])[0].state["osType"]
    client.connection.remove([id])
    assert client.connection.query("www") == []
    kinds = {kind.name: kind for kind in client.connection.types()}
    assert kinds["ssh"].schema["properties"]["password"]["x-connmgr-secret"] is True


def test_shells(client: Client) -> None:
    info = client.shell.start(LOCAL_MACHINE)
    assert info.os_type in ("linux", "macos", "bsd")
    result = client.shell.exec(LOCAL_MACHINE, "cat; pwd; echo $A; exit 3", stdin="in\n", cwd="/", env={"A": "b"})
    assert result == Result(3, "in\n/\nb", "", truncated=False)
    raw = client.shell.exec_bytes(LOCAL_MACHINE, r"printf 'a\000\377\n'; cat >&2", stdin=b"\xfe")
    assert raw == RawResult(0, b"a\0\xff\n", b"\xfe", truncated=False)

    def late(seconds: float) -> ClientError:
        with pytest.raises(ClientError) as caught:
            client.shell.exec(LOCAL_MACHINE, "echo partly; sleep 100", timeout=seconds)
        assert (caught.value.code, caught.value.status) == ("command_timeout", 500)
        return caught.value

    assert given_time(late, lambda error: error.details["stdout"]).details["stdout"] == "partly"
    client.shell.stop(LOCAL_MACHINE)
    with pytest.raises(ClientError) as none:
        client.shell.exec(LOCAL_MACHINE, "true")
    assert none.value.code == "no_shell"


def test_a_shell_is_started_by_its_first_command(client: Client) -> None:
    assert client.shell.exec(LOCAL_MACHINE, "cd /usr; pwd", start=True) == Result(0, "/usr", "", truncated=False)
    assert client.shell.exec_bytes(LOCAL_MACHINE, "pwd", start=True).stdout == b"/usr\n"
    assert not client.shell.ensure(LOCAL_MACHINE)
    assert client.shell.exec(LOCAL_MACHINE, "pwd", fresh=True).stdout != "/usr"
    with pytest.raises(ClientError) as caught:
        client.shell.exec(LOCAL_MACHINE, "kill -9 $$", start=True)
    assert caught.value.code == "shell_lost"
    with client.shell.stream(LOCAL_MACHINE, "pwd", start=True) as stream:
        pieces = list(stream)
    assert (stream.restarted, stream.exit_code, *pieces[0]) == (True, 0, b"", b"")
    (running,) = client.shell.list(LOCAL_MACHINE)
    assert (running.status.state, running.command_seconds) == ("idle", None)
    client.shell.stop(LOCAL_MACHINE)
    assert not client.shell.ensure(LOCAL_MACHINE, session="build"), "a first shell counts as one that was lost"


def test_secrets_and_the_vault(own_daemon: Daemon) -> None:
    client = own_daemon.client
    encrypted = client.secret.encrypt("value")
    assert client.secret.decrypt(encrypted) == "value"
    assert not client.vault.status().has_users
    client.vault.add_user("alice", "four words or more")
    with pytest.raises(ClientError) as locked:
        client.secret.decrypt(encrypted)
    assert locked.value.code == "secret_locked"
    client.vault.change_passphrase("alice", "four words or more", "four other words")
    client.vault.unlock("alice", "four other words")
    assert client.vault.status().principals == ("alice", "vault")
    assert client.secret.decrypt(client.secret.encrypt("for alice", ["alice"])) == "for alice"
    client.vault.lock()
    assert client.vault.status().user is None
    client.vault.unlock("alice", "four other words")
    assert client.vault.remove_user("alice", force=True).connections == []


def test_versions_and_the_end(own_daemon: Daemon) -> None:
    from connmgr import __version__

    client = own_daemon.client
    assert client.daemon.version().build == __version__
    client.shell.start(LOCAL_MACHINE)
    status = client.daemon.status()
    assert (status.pid, status.sessions[0].connection) == (own_daemon.pid, LOCAL_MACHINE)
    client.daemon.stop()
    assert own_daemon.process.wait(20) == 0


class TestSessions:
    def test_a_clone_continues_the_session_in_another_thread(self, own_daemon: Daemon) -> None:
        client = own_daemon.client
        client.vault.add_user("alice", "four words or more")
        client.vault.unlock("alice", "four words or more")
        with client.clone() as other, ThreadPoolExecutor(1) as pool:
            assert pool.submit(other.vault.status).result().user == "alice"
        with Client(client.base_url, auth_file=client._session.auth_file) as stranger:
            assert stranger.vault.status().user is None

    def test_a_token_continues_a_session(self, client: Client) -> None:
        client.daemon.version()
        nowhere = Path("/nonexistent")
        with Client(client.base_url, auth_file=nowhere, session_token=client.session_token) as other:
            assert other.daemon.version().build
        with Client(client.base_url, auth_file=nowhere, session_token="x") as other, pytest.raises(Unreachable):
            other.daemon.version()

    def test_the_api_key_will_do(self, clean_daemon: Daemon) -> None:
        key = run("api-key", environment=clean_daemon.environment).output.strip()
        with Client(clean_daemon.url, auth_file="/nonexistent", api_key=key) as client:
            assert client.daemon.version().build
        with Client(clean_daemon.url, api_key="wrong") as client, pytest.raises(AccessDenied) as denied:
            client.daemon.version()
        assert denied.value.code == "invalid_credential"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *((name, value) for name in ("api_key", "token", "session_token") for value in ("", " ", "\n")),
            ("auth_file", ""),
            ("token_file", ""),
        ],
    )
    def test_an_empty_credential_is_an_error(
        self, clean_daemon: Daemon, name: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONNMGR_AUTH_FILE", str(clean_daemon.auth_file))
        with pytest.raises(BadCredential) as bad:
            Client(clean_daemon.url, **{name: value})  # type: ignore[arg-type]
        assert bad.value.code == "invalid_credential"
        assert name == "token_file" or name in bad.value.message

    def test_two_credentials_are_an_error_and_a_parameter_outranks_variables(
        self, clean_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("CONNMGR_AUTH_FILE", str(clean_daemon.auth_file))
        made = clean_daemon.client.token.create("ci", 600, ["connection.read"])
        file = tmp_path / "token"
        file.write_text(made["token"] + "\n")
        for two in ({"api_key": "k", "token": made["token"]}, {"token": made["token"], "token_file": file}):
            with pytest.raises(BadCredential, match="several credentials"):
                Client(clean_daemon.url, **two)  # type: ignore[arg-type]
        for one in ({"token": made["token"]}, {"token_file": file}, {"api_key": made["token"]}):
            with Client(clean_daemon.url, **one) as client:  # type: ignore[arg-type]
                assert client.token.info().id == made["id"]
        key = run("api-key", environment=clean_daemon.environment).output.strip()
        with pytest.raises(BadCredential, match="tokens begin with"):
            Client(clean_daemon.url, token=key)
        monkeypatch.setenv("CONNMGR_TOKEN", made["token"])
        with Client(clean_daemon.url) as client, client.clone() as twin:
            assert (client.token.info().id, twin.token.info().id) == (made["id"], made["id"])
        with Client(clean_daemon.url, api_key=key) as client:
            assert client.token.info().id is None
        with Client(clean_daemon.url, clean_daemon.auth_file) as client:
            assert client.token.info().id is None
        monkeypatch.setenv("CONNMGR_TOKEN", "")
        with pytest.raises(BadCredential, match="CONNMGR_TOKEN is empty"):
            Client(clean_daemon.url)

    def test_the_end_of_a_named_session_does_not_make_the_owner(
        self, clean_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONNMGR_AUTH_FILE", str(clean_daemon.auth_file))
        with Client(clean_daemon.url, session_token="over") as client:
            with pytest.raises(AccessDenied) as denied:
                client.daemon.version()
            assert denied.value.code == "invalid_token"
            with client.clone() as twin, pytest.raises(AccessDenied):
                twin.daemon.version()

    def test_an_empty_address_does_not_mean_the_default_daemon(self, clean_daemon: Daemon) -> None:
        with pytest.raises(ValueError, match="Not the URL of a daemon"):
            Client("", clean_daemon.auth_file)

    def test_the_environment_names_the_daemon(self, clean_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CONNMGR_AUTH_FILE", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", clean_daemon.environment["XDG_RUNTIME_DIR"])
        monkeypatch.setenv("CONNMGR_PORT", clean_daemon.url.rpartition(":")[2])
        with Client() as client:
            assert client.daemon.version().build

    def test_a_restarted_daemon_is_greeted_anew(self, port: str, start_daemon: StartDaemon) -> None:
        first = start_daemon("--port", port)
        with Client(first.url, auth_file=first.auth_file) as client:
            client.shell.start(LOCAL_MACHINE)
            first.stop()
            with pytest.raises(Unreachable) as gone:
                client.daemon.version()
            assert not gone.value.sent
            start_daemon("--port", port, home=first.home)
            client.shell.start(LOCAL_MACHINE)
            assert client.shell.exec(LOCAL_MACHINE, "echo again").stdout == "again"

    @pytest.mark.parametrize("size", [200_000, 8_000_000])
    def test_a_restarted_daemon_is_greeted_anew_by_a_large_request(
        self, port: str, start_daemon: StartDaemon, size: int
    ) -> None:
        first = start_daemon("--port", port)
        with Client(first.url, auth_file=first.auth_file) as client:
            token = client.shell.start(LOCAL_MACHINE) and client.session_token
            first.stop()
            second = start_daemon("--port", port, home=first.home)
            second.client.shell.start(LOCAL_MACHINE)
            assert client.shell.exec(LOCAL_MACHINE, "wc -c", stdin="x" * size).stdout.strip() == str(size)
            assert client.session_token != token

    def test_an_expired_token_is_renewed_also_before_a_stream(self, start_daemon: StartDaemon, tmp_path: Path) -> None:
        # Long enough for a handshake and what follows it, also on a busy machine: what a pipe sent cannot be repeated.
        daemon = start_daemon("--session-ttl", "2")
        read, write = os.pipe()
        os.write(write, b"streamed")
        os.close(write)
        with Client(daemon.url, auth_file=daemon.auth_file) as client, os.fdopen(read, "rb") as pipe:
            client.shell.start(LOCAL_MACHINE)
            token = client.session_token
            assert threading.Event().wait(2.5) is False
            client.fs.upload(LOCAL_MACHINE, pipe, tmp_path / "file")
            assert client.session_token != token
        assert (tmp_path / "file").read_bytes() == b"streamed"


@contextmanager
def impostor(host: str) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """Another user's listening program: its port, and a function that returns its first client's whole data."""
    program = (
        "import os, socket, sys; os.setgid(65533); os.setuid(65533)\n"
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "server = socket.create_server((sys.argv[1], 0), family=family, dualstack_ipv6=':' in sys.argv[1])\n"
        "print(server.getsockname()[1], flush=True)\n"
        "client = server.accept()[0]\n"
        "sys.stdout.buffer.write(client.makefile('rb').read())"
    )
    command = [sys.executable, "-c", program, host]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), lambda: process.communicate(timeout=30)[0]
        finally:
            process.kill()


class TestFaults:
    def test_a_request_that_breaks_is_not_repeated(self, own_daemon: Daemon, tmp_path: Path) -> None:
        client = own_daemon.client
        client.shell.start(LOCAL_MACHINE)
        mark = tmp_path / "begun"
        os.mkfifo(mark)

        def kill() -> None:
            assert mark.read_text() == "begun\n"
            own_daemon.kill()

        with ThreadPoolExecutor(1) as pool:
            killer = pool.submit(kill)
            with pytest.raises(Unreachable) as lost:
                client.shell.exec(LOCAL_MACHINE, f"echo begun > {mark}; sleep 100")
            killer.result()
        assert lost.value.sent

    def test_nobody_listens(self, tmp_path: Path) -> None:
        (tmp_path / "auth").write_text("x")
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            with Client(url, auth_file=tmp_path / "auth") as client, pytest.raises(Unreachable) as nobody:
                client.daemon.version()
        assert (nobody.value.sent, nobody.value.status) == (False, 0)

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
            b"SSH-2.0-x\r\n",
            b"",
        ],
    )
    def test_a_server_that_is_not_a_daemon_is_reported(self, tmp_path: Path, answer: bytes) -> None:
        (tmp_path / "auth").write_text("x")
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

            def answer_once() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            done = pool.submit(answer_once)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            with Client(url, auth_file=tmp_path / "auth") as client, pytest.raises(ClientError):
                client.daemon.version()
            done.result()

    @pytest.mark.needs("root")
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a listening program is")
    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
    @pytest.mark.parametrize("credential", [{}, {"api_key": "key"}, {"session_token": "token"}], ids=str)
    def test_another_user_who_has_taken_the_port_is_told_nothing(
        self, tmp_path: Path, host: str, credential: dict[str, str]
    ) -> None:
        (tmp_path / "auth").write_text("x")
        with impostor(host) as (port, told):
            url = f"http://127.0.0.1:{port}"
            with (
                Client(url, auth_file=tmp_path / "auth", **credential) as client,
                pytest.raises(Unreachable, match=r"another user \(uid 65533\)") as refused,
            ):
                client.daemon.version()
            assert not refused.value.sent
            assert told() == b""

    @pytest.mark.needs("root")
    def test_another_user_s_daemon_is_talked_to_where_it_is_asked_for(self, tmp_path: Path) -> None:
        with impostor("127.0.0.1") as (port, told):
            url = f"http://127.0.0.1:{port}"
            with Client(url, api_key="key", foreign=True, timeout=1) as client, pytest.raises(Unreachable) as silent:
                client.daemon.version()
            assert silent.value.sent
            assert b'"apiKey"' in told()

    def test_a_deadline_bounds_requests_and_what_waits_beyond_it(self, daemon: Daemon) -> None:
        with Client(daemon.url, daemon.auth_file) as client:
            client.shell.start(LOCAL_MACHINE)
            job = client.jobs.start(LOCAL_MACHINE, "sleep 600")
            began = time.monotonic()
            client.answer_by(began + 0.5)
            with pytest.raises(Unreachable) as slow:
                job.wait(20, retry_timeout=0)
            assert slow.value.sent
            assert 0.5 <= time.monotonic() - began < 10
            with pytest.raises(Unreachable, match="No time is left") as late:
                client.daemon.version()
            assert not late.value.sent
            client.answer_by(None)
            job.remove(force=True)

    @pytest.mark.parametrize("answer", [b"{}", b"[]", b"no", b'{"infos":[{}]}', b'{"infos":[{"connection":"x"}]}'])
    def test_an_answer_that_lacks_a_member_is_a_client_error(self, tmp_path: Path, answer: bytes) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

            def answer_once() -> None:
                connection, _ = server.accept()
                with connection:
                    received = b""
                    while not received.endswith(b"}"):
                        received += connection.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    connection.sendall(head % len(answer) + answer)

            done = pool.submit(answer_once)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            with Client(url, session_token="token") as client, pytest.raises(ClientError, match="The answer") as caught:
                client.connection.info(["x"])
            assert (caught.value.code, caught.value.status) == ("unknown", 200)
            done.result()

    def test_a_malformed_url_is_refused(self) -> None:
        for url in ("127.0.0.1:21721", "https://127.0.0.1", "http://"):
            with pytest.raises(ValueError, match="Not the URL of a daemon"):
                Client(url)


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms ask platformdirs")
@pytest.mark.parametrize("named", [True, False])
def test_the_default_places_equal_those_of_platformdirs(
    named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import platformdirs

    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        if named:
            monkeypatch.setenv(variable, str(tmp_path / variable))
        else:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("CONNMGR_CONFIG", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert paths.data_directory() == platformdirs.user_data_path("connmgr", appauthor=False)
    assert paths.config_file(os.environ) == platformdirs.user_config_path("connmgr", appauthor=False) / "config.toml"
    assert paths.auth_file(os.environ) == platformdirs.user_state_path("connmgr", appauthor=False) / "auth"
