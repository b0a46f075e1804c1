"""The Unix socket beside the auth file: which users it accepts, which server a client trusts, and leftovers."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import Client, Unreachable
from connmgr.client.address import connect_beside
from connmgr.daemon.files import AuthFile, SocketFile
from connmgr.errors import StartupError
from connmgr.paths import socket_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS

ANOTHER = 65533


def port_of(daemon: Daemon) -> int:
    return int(daemon.url.rpartition(":")[2])


def beside(daemon: Daemon) -> Path:
    return socket_of(daemon.auth_file, port_of(daemon))


def family_of(client: Client) -> socket.AddressFamily:
    """Return the address family of ``client``'s connection, after its first request."""
    connected = client._session._connection.sock
    assert connected is not None
    return socket.AddressFamily(connected.family)


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Change this process's effective user to ``uid`` for the block, which only root can."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_client_of_the_same_user_prefers_the_socket_which_ends_with_the_daemon(own_daemon: Daemon) -> None:
    path = beside(own_daemon)
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert own_daemon.client.daemon.version().build
    assert family_of(own_daemon.client) == socket.AF_UNIX, "the client went by the port although there is a socket"
    with Client(own_daemon.url.replace("127.0.0.1", "localhost"), own_daemon.auth_file) as other:
        assert other.daemon.version().build
        assert family_of(other) == socket.AF_UNIX
    own_daemon.stop()
    assert list(path.parent.glob("*.sock")) == []


def test_clients_without_the_socket_use_the_port(own_daemon: Daemon) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(own_daemon), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/openapi.json")
        assert connection.getresponse().status == 200


def test_the_socket_is_not_used_for_the_daemon_of_another_port(own_daemon: Daemon) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url, own_daemon.auth_file) as client, pytest.raises(Unreachable) as nobody:
            client.daemon.version()
    assert not nobody.value.sent


def test_the_socket_of_a_killed_daemon_hinders_neither_clients_nor_the_next_daemon(
    start_daemon: StartDaemon, own_daemon: Daemon
) -> None:
    stale = beside(own_daemon)
    own_daemon.kill()
    assert stat.S_ISSOCK(stale.lstat().st_mode)
    with Client(own_daemon.url, own_daemon.auth_file) as client, pytest.raises(Unreachable) as nobody:
        client.daemon.version()
    assert not nobody.value.sent
    successor = Daemon(own_daemon.home)
    try:
        assert [path.name for path in stale.parent.glob("*.sock")] == [beside(successor).name]
        assert successor.client.daemon.version().build
        assert family_of(successor.client) == socket.AF_UNIX
    finally:
        successor.stop()


def test_without_room_for_the_path_clients_use_the_port(start_daemon: StartDaemon, tmp_path: Path) -> None:
    auth_file = tmp_path / ("long" * 30) / "auth"
    daemon = start_daemon("--auth-file", str(auth_file))
    with Client(daemon.url, auth_file) as client:
        assert client.daemon.version().build
        assert family_of(client) == socket.AF_INET
    assert "No Unix socket at" in daemon.stderr()
    assert list(auth_file.parent.glob("*.sock")) == []


def test_another_file_in_its_place_is_kept_and_clients_use_the_port(tmp_path: Path) -> None:
    path = socket_of(tmp_path / "auth", 5)
    path.write_text("precious")
    made = SocketFile(tmp_path / "auth", 5)
    assert made.bound is None
    made.close()
    assert path.read_text() == "precious"
    assert connect_beside(path, 1) is None


def test_sockets_of_other_programs_with_similar_names_stay(tmp_path: Path) -> None:
    others = [tmp_path / "auth.agent.sock", socket_of(tmp_path / "auth.2", 5), tmp_path / "auth.sock"]
    with contextlib.ExitStack() as bound:
        for path in (*others, socket_of(tmp_path / "auth", 5)):
            bound.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        SocketFile(tmp_path / "auth", 6).close()
    assert sorted(tmp_path.iterdir()) == sorted(others), "a starting daemon removes what is no socket of its own"


@pytest.mark.needs("root")
def test_a_daemon_starts_in_a_directory_that_it_cannot_list(tmp_path: Path) -> None:
    tmp_path.chmod(0o300)
    os.chown(tmp_path, ANOTHER, ANOTHER)
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        with as_user(ANOTHER):
            made = SocketFile(Path(f"/proc/self/fd/{descriptor}/auth"), 6)
            assert made.bound is not None
            made.close()
    finally:
        os.close(descriptor)


@pytest.mark.needs("root")
def test_the_daemon_disconnects_another_user(own_daemon: Daemon) -> None:
    path = beside(own_daemon)
    # Permissions let the user in, so that the socket itself has to refuse.
    for above in (path, *path.parents):
        if above.is_relative_to(own_daemon.home.parent):
            above.chmod(0o777 if above == path else 0o755)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(20)
        own = os.open(path, os.O_PATH)
        try:
            with as_user(ANOTHER):
                stranger.connect(f"/proc/self/fd/{own}")
        finally:
            os.close(own)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stranger.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stranger.recv(100) == b"", "the daemon answers another user's program at its Unix socket"


@pytest.mark.needs("root")
@pytest.mark.skipif(sys.platform != "linux", reason="credentials are those of listen() on Linux")
@pytest.mark.parametrize("owned_by", ["another", "us"])
def test_a_socket_served_by_another_user_gets_no_request(tmp_path: Path, owned_by: str) -> None:
    (tmp_path / "auth").write_text("x")
    path = socket_of(tmp_path / "auth", 1)
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(path))
        with as_user(ANOTHER):
            impostor.listen()
        os.chown(path, ANOTHER if owned_by == "another" else 0, -1)
        impostor.setblocking(False)
        with Client("http://127.0.0.1:1", tmp_path / "auth") as client, pytest.raises(Unreachable) as refused:
            client.daemon.version()
        assert not refused.value.sent
        if owned_by == "another":
            with pytest.raises(BlockingIOError):
                impostor.accept()
        else:
            assert f"another user (uid {ANOTHER})" in refused.value.message
            with impostor.accept()[0] as told:
                assert told.recv(100) == b""


@pytest.mark.needs("root")
def test_another_user_s_auth_file_is_not_trusted(own_daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_bytes(own_daemon.auth_file.read_bytes())
    with Client(own_daemon.url, path) as client:
        assert client.daemon.version().build
    os.chown(path, ANOTHER, ANOTHER)
    with (
        Client(own_daemon.url, path) as client,
        pytest.raises(Unreachable, match=f"another user, uid {ANOTHER}") as refused,
    ):
        client.daemon.version()
    assert not refused.value.sent


@pytest.mark.needs("root")
def test_a_program_of_the_auth_file_s_owner_gets_no_request(tmp_path: Path) -> None:
    (tmp_path / "auth").write_text("x")
    os.chown(tmp_path / "auth", ANOTHER, ANOTHER)
    with as_user(ANOTHER), socket.create_server(("127.0.0.1", 0)) as impostor:
        os.seteuid(0)
        url = f"http://127.0.0.1:{impostor.getsockname()[1]}"
        client = Client(url, tmp_path / "auth", session_token="token", timeout=DEADLINE_SECONDS)
        with client, pytest.raises(Unreachable, match=rf"another user \(uid {ANOTHER}\)") as refused:
            client.vault.unlock("me", "passphrase")
    assert not refused.value.sent


class TestPathToTheAuthFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "above" / "run").mkdir(mode=0o700, parents=True)
        return tmp_path / "above" / "run" / "auth"

    @pytest.mark.parametrize("mode", [0o777, 0o757])
    def test_a_parent_directory_that_others_may_write_to_is_refused(self, path: Path, mode: int) -> None:
        above = path.parent.parent
        above.chmod(mode)
        with pytest.raises(StartupError, match=f"chmod go-w {above}"):
            AuthFile(path)
        assert not path.exists()
        above.chmod(0o1777)
        AuthFile(path).remove()

    @pytest.mark.needs("root")
    def test_a_parent_directory_writable_by_a_shared_group_is_refused(self, path: Path) -> None:
        above = path.parent.parent
        above.chmod(0o775)
        AuthFile(path).remove()
        os.chown(above, 0, ANOTHER)
        with pytest.raises(StartupError, match="open to others"):
            AuthFile(path)

    @pytest.mark.needs("root")
    @pytest.mark.parametrize("mode", [0o755, 0o1777])
    def test_a_parent_directory_of_another_user_is_refused(self, path: Path, mode: int) -> None:
        above = path.parent.parent
        above.chmod(mode)
        os.chown(above, ANOTHER, -1)
        with pytest.raises(StartupError, match="another user"):
            AuthFile(path)

    @pytest.mark.needs("root")
    def test_a_symbolic_link_of_another_user_in_the_path_is_refused(self, path: Path) -> None:
        link = path.parent.parent / "link"
        link.symlink_to(path.parent)
        AuthFile(link / "auth").remove()
        os.chown(link, ANOTHER, -1, follow_symlinks=False)
        with pytest.raises(StartupError, match="another user"):
            AuthFile(link / "auth")
