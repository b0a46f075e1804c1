"""Links through other links, by the connection's gateway and by ProxyJump."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from connmgr.errors import (
    AuthFailed,
    HostKeyUnknown,
    HostRefused,
    HostUnresolved,
    OperationError,
    TransportUnsupported,
)
from connmgr_ssh import Ssh
from connmgr_ssh.transport import SshTransport
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.ssh.conftest import Connect, StartSshd, data_for
from tests.plugins.ssh.test_authentication import admit, whoami
from tests.plugins.ssh.test_channel import run
from tests.plugins.sshd import Sshd, keygen

pytestmark = pytest.mark.needs("sshd", "ssh")


def test_three_hosts_in_a_row(start_sshd: StartSshd, connect: Connect) -> None:
    first, second, third = start_sshd(), start_sshd(), start_sshd()
    one = connect(first)
    two = connect(second, via=one)
    three = connect(third, via=two)
    assert whoami(three) == third.user
    assert run(three, "head -c 5000000 /dev/zero") == (0, bytes(5_000_000), b"")
    for server in (first, second, third):
        assert server.log().count("Accepted publickey") == 1


def test_two_links_share_a_gateway(start_sshd: StartSshd, connect: Connect) -> None:
    gateway, target = connect(start_sshd()), start_sshd()
    one, two = connect(target, via=gateway), connect(target, via=gateway)
    one.close()
    assert whoami(two) == target.user


def test_when_the_gateway_goes_everything_over_it_ends_at_once(start_sshd: StartSshd, connect: Connect) -> None:
    gateway = connect(start_sshd())
    link = connect(start_sshd(), via=gateway)
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    threading.Timer(0.1, gateway.close).start()
    start = time.monotonic()
    with pytest.raises(EOFError):
        channel.recv(DEADLINE_SECONDS)
    assert time.monotonic() - start < DEADLINE_SECONDS / 2
    with pytest.raises(OperationError):
        link.open_channel(["true"], timeout=DEADLINE_SECONDS)


def test_a_tcp_stream_carries_data_both_ways(sshd: Sshd, connect: Connect) -> None:
    data = bytes(range(256)) * 20_000
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            peer, _ = listener.accept()
            with peer:
                while piece := peer.recv(65536):
                    peer.sendall(piece)

        thread = threading.Thread(target=echo)
        thread.start()
        stream = connect(sshd).open_tcp("127.0.0.1", listener.getsockname()[1], timeout=DEADLINE_SECONDS)
        stream.settimeout(DEADLINE_SECONDS)
        writer = threading.Thread(target=stream.sendall, args=[data])
        writer.start()
        received = bytearray()
        while len(received) < len(data):
            piece = stream.recv(100_000)
            assert piece
            received += piece
        writer.join(DEADLINE_SECONDS)
        stream.close()
        thread.join(DEADLINE_SECONDS)
    assert received == data


def test_a_tcp_stream_times_out_and_ends_with_its_peer(sshd: Sshd, connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = connect(sshd).open_tcp("127.0.0.1", listener.getsockname()[1], timeout=DEADLINE_SECONDS)
        peer, _ = listener.accept()
        stream.settimeout(0.01)
        with pytest.raises(TimeoutError):
            stream.recv(1)
        peer.close()
        stream.settimeout(DEADLINE_SECONDS)
        assert stream.recv(1) == b""
        stream.close()


def test_a_closed_port_behind_a_gateway(sshd: Sshd, connect: Connect, closed_port: int) -> None:
    with pytest.raises(HostRefused, match=f"could not connect to 127.0.0.1:{closed_port}"):
        connect(sshd).open_tcp("127.0.0.1", closed_port, timeout=DEADLINE_SECONDS)


def test_an_unknown_name_behind_a_gateway(sshd: Sshd, connect: Connect) -> None:
    with pytest.raises(HostUnresolved, match=r"could not connect to nothing\.invalid"):
        connect(sshd).open_tcp("nothing.invalid", 22, timeout=DEADLINE_SECONDS)


def test_a_gateway_that_forwards_nothing(start_sshd: StartSshd, connect: Connect, sshd: Sshd) -> None:
    gateway = connect(start_sshd({"AllowTcpForwarding": "no"}))
    with pytest.raises(TransportUnsupported, match="AllowTcpForwarding"):
        connect(sshd, via=gateway)


def test_the_host_key_behind_a_gateway_is_checked(sshd: Sshd, connect: Connect, start_sshd: StartSshd) -> None:
    target = start_sshd()
    with pytest.raises(HostKeyUnknown, match=rf"\[127.0.0.1\]:{target.port}"):
        connect(target, via=connect(sshd), hostKey=None)
    assert "publickey" not in target.log()


@pytest.fixture
def jump(start_sshd: StartSshd, home: Path) -> Sshd:
    """A host named ``jump`` in ~/.ssh/config, with its own key."""
    server = start_sshd()
    admit(server, keygen(home / "jump-key"))
    (home / ".ssh" / "config").write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n IdentityFile ~/jump-key\n"
    )
    (home / ".ssh" / "known_hosts").write_text(server.known_hosts())
    return server


def through(home: Path, target: Sshd, jumps: str) -> None:
    with (home / ".ssh" / "config").open("a") as file:
        file.write(f"Host target\n HostName 127.0.0.1\n Port {target.port}\n ProxyJump {jumps}\n")


def opened(ssh: Ssh, target: Sshd) -> SshTransport:
    link = ssh.open(data_for(ssh, target, host="target", port=22), None, timeout=DEADLINE_SECONDS)
    assert isinstance(link, SshTransport)
    return link


def test_proxy_jump_goes_through_a_link_of_its_own(ssh: Ssh, start_sshd: StartSshd, jump: Sshd, home: Path) -> None:
    target = start_sshd()
    through(home, target, "jump")
    before = threading.active_count()
    link = opened(ssh, target)
    assert whoami(link) == target.user
    assert "Accepted publickey" in jump.log()
    link.close()
    eventually(lambda: threading.active_count() <= before, "a thread outlives its link")


def test_proxy_jump_through_several_hosts(ssh: Ssh, start_sshd: StartSshd, jump: Sshd, home: Path) -> None:
    second, target = start_sshd(), start_sshd()
    admit(second, home / "jump-key")
    with (home / ".ssh" / "known_hosts").open("a") as file:
        file.write(second.known_hosts())
    with (home / ".ssh" / "config").open("a") as file:
        file.write(f"Host second\n HostName 127.0.0.1\n Port {second.port}\n")
        file.write(f" User {second.user}\n IdentityFile ~/jump-key\n")
    through(home, target, "jump,second")
    link = opened(ssh, target)
    assert whoami(link) == target.user
    assert "Accepted publickey" in second.log()
    link.close()


def test_the_host_jumped_through_is_checked_and_gets_no_credential_of_the_target(
    ssh: Ssh, start_sshd: StartSshd, jump: Sshd, home: Path
) -> None:
    target = start_sshd()
    through(home, target, "jump")
    jump.authorized_keys.write_text(target.client_key.with_suffix(".pub").read_text())
    with pytest.raises(AuthFailed, match=r"Tried: ~/jump-key\. "):
        opened(ssh, target)
    (home / ".ssh" / "known_hosts").unlink()
    with pytest.raises(HostKeyUnknown, match=rf"\[127.0.0.1\]:{jump.port}"):
        opened(ssh, target)


def test_proxy_jump_in_a_circle_is_refused(ssh: Ssh, sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host target\n ProxyJump other\nHost other\n ProxyJump target\n")
    with pytest.raises(TransportUnsupported, match="in a circle"):
        opened(ssh, sshd)


def test_a_gateway_outranks_proxy_jump(sshd: Sshd, connect: Connect, start_sshd: StartSshd, home: Path) -> None:
    target = start_sshd()
    through(home, target, "nothing.invalid")
    assert whoami(connect(target, via=connect(sshd), host="target", port=22)) == target.user
