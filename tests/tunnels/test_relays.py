"""The programs that connect to ports and sockets on a remote host: each installed one carries the bytes and ends."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from connmgr.errors import HostRefused, TransportUnsupported
from connmgr.plugin import Channel, Deadline
from connmgr.tunnels.tunnel import PROGRAMS, UNIX_PROGRAMS, Relay, find_relay
from connmgr_local.transport import LocalTransport
from tests.components import program
from tests.deadlines import DEADLINE_SECONDS
from tests.tunnels.services import Service, echo, last_word

HERE = [name for name in PROGRAMS if program(name)]
Open = Callable[[int], Channel]


@pytest.fixture
def local() -> Iterator[LocalTransport]:
    with closing(LocalTransport()) as transport:
        yield transport


def _read(channel: Channel) -> bytes:
    """Return all output to the end."""
    told, deadline = b"", Deadline(DEADLINE_SECONDS)
    with suppress(EOFError):
        while not deadline.passed:
            told += channel.recv(deadline.left())[0]
        pytest.fail(f"it did not end after {told[-100:]!r}")
    return told


@pytest.mark.parametrize("name", HERE)
def test_every_byte_goes_both_ways_and_the_end_too(local: LocalTransport, name: str) -> None:
    data = os.urandom(200_000)
    with closing(Service(echo)) as service:
        channel = Relay(name).dial(local, ("127.0.0.1", service.port), DEADLINE_SECONDS)
        channel.sendall(data, DEADLINE_SECONDS)
        came = b""
        while len(came) < len(data):
            came += channel.recv(DEADLINE_SECONDS)[0]
        assert came == data
        if name != "nc":
            service.hang_up()
            assert _read(channel) == b""
        channel.close()


@pytest.mark.parametrize("name", [name for name in HERE if name != "bash"])
def test_the_end_of_what_is_sent_is_passed_on(local: LocalTransport, name: str) -> None:
    with closing(Service(last_word)) as service:
        channel = Relay(name).dial(local, ("localhost", service.port), DEADLINE_SECONDS)
        channel.sendall(b"x" * 1000, DEADLINE_SECONDS)
        channel.shutdown_write()
        assert _read(channel) == b"1000 bytes"
        assert channel.exit_status(DEADLINE_SECONDS) == 0
        channel.close()


@pytest.mark.parametrize("name", HERE)
def test_an_unreachable_address_is_an_exit_status(local: LocalTransport, name: str, closed_port: int) -> None:
    channel = Relay(name).dial(local, ("127.0.0.1", closed_port), DEADLINE_SECONDS)
    assert _read(channel) == b""
    assert channel.exit_status(DEADLINE_SECONDS) != 0
    channel.close()


@pytest.mark.parametrize("name", [name for name in UNIX_PROGRAMS if name in HERE])
def test_a_unix_socket_is_reached_too(local: LocalTransport, name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, socket.socket(socket.AF_UNIX) as service:
        service.bind(f"{directory}/app")
        service.listen()
        service.settimeout(DEADLINE_SECONDS)
        channel = Relay(name).dial(local, f"{directory}/app", DEADLINE_SECONDS)
        connected, _ = service.accept()
        with connected:
            connected.settimeout(DEADLINE_SECONDS)
            channel.sendall(b"asked", DEADLINE_SECONDS)
            assert connected.recv(100) == b"asked"
            connected.sendall(b"answered")
        assert channel.recv(DEADLINE_SECONDS)[0] == b"answered"
        channel.close()


@pytest.mark.parametrize("path", ["/run/a,exec=b", "relative", "/a b", "/a!!b", "/a:b", "/" + "a" * 107])
def test_a_path_that_a_program_reads_in_another_way_is_refused(local: LocalTransport, path: str) -> None:
    with pytest.raises(HostRefused, match="not a path of a Unix socket"):
        Relay("socat").dial(local, path, DEADLINE_SECONDS)


def test_the_first_installed_program_is_used(local: LocalTransport) -> None:
    assert find_relay(local, DEADLINE_SECONDS).program == HERE[0]


def test_a_machine_without_any_program_reports_which_it_needs(
    local: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TransportUnsupported, match="python3, bash, socat, nc"):
        find_relay(local, DEADLINE_SECONDS)


@pytest.mark.parametrize("name", HERE)
def test_a_host_name_is_not_interpreted_by_a_shell(local: LocalTransport, tmp_path: Path, name: str) -> None:
    host = f"$(touch${{IFS}}{tmp_path}/made)"
    with suppress(HostRefused):
        channel = Relay(name).dial(local, (host, 1), DEADLINE_SECONDS)
        assert _read(channel) == b""
        assert channel.exit_status(DEADLINE_SECONDS) != 0
        channel.close()
    assert not list(tmp_path.iterdir())
