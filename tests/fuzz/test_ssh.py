"""Hostile SSH servers, agents and files: a login ends with an error of connmgr, a file is read or refused."""

from __future__ import annotations

import base64
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st

from connmgr.errors import AuthFailed, ConnmgrError, TransportUnsupported
from connmgr.plugin import Deadline
from connmgr_ssh import Ssh, known_hosts
from connmgr_ssh.agent import AgentClient
from connmgr_ssh.config import ConfigFiles, resolve
from connmgr_ssh.packets import packed
from tests.deadlines import DEADLINE_SECONDS
from tests.fuzz.rounds import fuzz
from tests.fuzz.ssh import NUMBER, Port

LOGIN_SECONDS = 1.0
GRACE_SECONDS = DEADLINE_SECONDS
"""How much later a login may end on a busy machine; one that hangs takes for ever."""

MEMORY_BYTES = 32 << 20

WORD = st.sampled_from(
    [
        b"",
        b"none",
        b"ssh-ed25519",
        b"curve25519-sha256",
        b"diffie-hellman-group14-sha256",
        b"a,,b",
        b"\xff",
        b"x" * 5000,
    ]
)
LISTS = st.lists(st.lists(WORD, max_size=3).map(b",".join), min_size=8, max_size=12)
USUAL = [
    *(
        b"curve25519-sha256,diffie-hellman-group14-sha256,ext-info-s,kex-strict-s-v00@openssh.com",
        b"ssh-ed25519,ecdsa-sha2-nistp256",
    ),
    *(b"aes128-gcm@openssh.com,aes128-ctr", b"aes128-gcm@openssh.com,aes128-ctr", b"hmac-sha2-256", b"hmac-sha2-256"),
    *(b"none", b"none", b"", b""),
]
KEXINIT = st.one_of(LISTS, st.just(USUAL)).map(
    lambda names: b"\x14" + bytes(16) + b"".join(map(packed, names)) + b"\0" + bytes(4)
)
PAYLOAD = st.one_of(
    KEXINIT,
    st.binary(max_size=80),
    st.builds(lambda kind, rest: bytes((kind,)) + rest, st.integers(0, 255), st.binary(max_size=60)),
    st.builds(
        lambda kind, number, rest: bytes((kind,)) + struct.pack(">I", number) + rest,
        st.sampled_from([1, 2, 3, 4, 6, 7, 20, 21, 30, 31, 33, 50, 51, 52, 53, 60, 80, 81, 82, 90, 91, 94, 98]),
        NUMBER,
        st.binary(max_size=40),
    ),
)


def packet(payload: bytes, length: int | None = None, padding: int | None = None) -> bytes:
    """Return the packet (RFC 4253, section 6) of a payload; ``length`` and ``padding`` are what it says of itself."""
    size = 8 - (5 + len(payload)) % 8
    size += 8 * (size < 4)
    total = 1 + len(payload) + size if length is None else length
    return struct.pack(">IB", total, size if padding is None else padding) + payload + bytes(size)


PACKET = st.one_of(
    PAYLOAD.map(packet),
    st.builds(packet, PAYLOAD, st.none() | NUMBER, st.none() | st.integers(0, 255)),
    st.binary(max_size=40),
)
BANNER = st.one_of(
    st.sampled_from(
        [b"SSH-2.0-x\r\n"] * 4
        + [b"SSH-2.0-x\n", b"SSH-1.99-x\r\n", b"SSH-1.5-x\r\n", b"SSH-9\r\n", b"SSH-2.0-" + b"x" * 9000 + b"\r\n"]
    ),
    st.sampled_from(
        [
            b"",
            b"\r\n",
            b"\xff\r\n",
            b"hello\r\n" * 50 + b"SSH-2.0-x\r\n",
            b"x" * 300_000,
            b"y\n" * 150_000,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ]
    ),
    st.binary(max_size=40),
)


class HostileServer(Port):
    """Says to each client what :attr:`script` says; then it may hang up."""

    script = b""
    hangs_up = True

    def serve(self, connected: socket.socket) -> None:
        with connected, suppress(OSError):
            connected.settimeout(5)
            connected.sendall(self.script)
            if self.hangs_up:
                connected.shutdown(socket.SHUT_WR)
            while connected.recv(65536):
                pass


@pytest.fixture
def server() -> Iterator[HostileServer]:
    running = HostileServer()
    yield running
    running.close()


@fuzz(
    examples=15,
    banner=BANNER,
    packets=st.lists(PACKET, max_size=5),
    cut=st.none() | st.integers(0, 3000),
    hangs_up=st.sampled_from([True] * 9 + [False]),
)
def test_a_login_at_a_hostile_server_ends_with_an_error(
    server: HostileServer,
    ssh: Ssh,
    unheard: list[object],
    banner: bytes,
    packets: list[bytes],
    cut: int | None,
    hangs_up: bool,
) -> None:
    server.script, server.hangs_up = (banner + b"".join(packets))[:cut], hangs_up
    data = ssh.schema().load(
        {
            "host": "127.0.0.1",
            "port": server.number,
            "user": "someone",
            "password": "secret",
            "hostKeyChecking": "acceptNew",
        }
    )
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(ConnmgrError) as caught:
            ssh.open(data, None, timeout=LOGIN_SECONDS)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
    assert caught.value.code != "internal"
    assert "secret" not in caught.value.message
    assert len(caught.value.message) < 2000
    assert all(character.isprintable() or character == "\n" for character in caught.value.message), caught.value.message
    assert time.monotonic() - began < LOGIN_SECONDS + GRACE_SECONDS
    assert unheard == []


KEY = b"\0\0\0\x0bssh-ed25519" + packed(bytes(32))
ANSWER = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda kind, count, rest: bytes((kind,)) + struct.pack(">I", count) + rest,
        st.sampled_from([12, 12, 12, 5, 14]),
        NUMBER,
        st.one_of(
            st.binary(max_size=30),
            st.lists(
                st.builds(
                    lambda blob, comment: packed(blob) + packed(comment),
                    st.sampled_from([KEY, b"", b"\xff"]),
                    st.binary(max_size=5),
                )
            ).map(b"".join),
        ),
    ),
)


@fuzz(examples=40, answer=ANSWER, length=st.none() | NUMBER, cut=st.none() | st.integers(0, 60))
def test_an_agent_answers_or_is_an_error(answer: bytes, length: int | None, cut: int | None) -> None:
    sent = (struct.pack(">I", len(answer) if length is None else length) + answer)[:cut]

    def connect(timeout: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        open_ends.append(theirs)
        return ours

    open_ends: list[socket.socket] = []
    began = time.thread_time()
    with suppress(AuthFailed):
        for identity in AgentClient(connect).identities(Deadline(5)):
            assert identity.public.blob
    with suppress(AuthFailed):
        AgentClient(connect)._signer(KEY, touched=False)(b"data", "ssh-ed25519", Deadline(5))
    for end in open_ends:
        end.close()
    assert time.thread_time() - began < 1


KEYWORDS = """
    Host Match Include HostName Port User IdentityFile CertificateFile IdentitiesOnly IdentityAgent ProxyJump
    ProxyCommand HostKeyAlias UserKnownHostsFile GlobalKnownHostsFile StrictHostKeyChecking SendEnv SetEnv
    ForwardAgent Tunnel x
"""
KEYWORD = st.sampled_from(KEYWORDS.split())
VALUES = """
    a * !a all final user exec %h % %%h %q ~ ~root/x ~x\0 a\0b $HOME ${X} 22 -1 ٣ ² none a,b [::1]:2 u@h:99999 ssh://a @
    config */* parts/* [ " "a ' \\ # =
"""
VALUE = st.one_of(st.sampled_from([*VALUES.split(), "9" * 5000, "", "host a"]), st.text(max_size=8))
LINE = st.one_of(
    st.builds(
        "{}{}{}".format,
        KEYWORD,
        st.sampled_from([" ", "=", " = ", "\t", ""]),
        st.lists(VALUE, max_size=3).map(" ".join),
    ),
    st.text(max_size=20),
)
CONFIG = st.one_of(
    st.lists(LINE, max_size=8).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")),
    st.binary(max_size=60),
)


@fuzz(examples=35, content=CONFIG, other=CONFIG, host=st.sampled_from(["a", "A.b", "::1", "*", "", "a b"]))
def test_a_configuration_is_read_or_refused(unheard: list[object], content: bytes, other: bytes, host: str) -> None:
    directory = Path.home() / ".ssh"
    (directory / "parts").mkdir(exist_ok=True)
    (directory / "config").write_bytes(content)
    (directory / "parts" / "1.conf").write_bytes(other)
    for read in (lambda: resolve(host), lambda: ConfigFiles().aliases(directory / "config")):
        with suppress(TransportUnsupported):
            read()


HOSTS = st.one_of(
    st.sampled_from(
        [
            "a",
            "*",
            "[a]:22",
            "a,!b",
            "|1|",
            "|1|x|y",
            "|1|AAAA|BBBB",
            "|1||",
            "@revoked",
            "@cert-authority",
            "@x",
            "#",
            "|1|a",
        ]
    ),
    st.text(max_size=6),
)
KNOWN = st.one_of(
    st.builds(
        lambda hosts, kind, blob, end: f"{hosts} {kind} {blob}{end}",
        HOSTS,
        st.sampled_from(["ssh-ed25519", "ssh-rsa", "x", ""]),
        st.one_of(
            st.binary(max_size=20).map(lambda blob: base64.b64encode(blob).decode()),
            st.just(base64.b64encode(KEY).decode()),
            st.text(max_size=5),
        ),
        st.sampled_from(["", " comment", "\0", "\r"]),
    ),
    st.text(max_size=20),
)


@fuzz(
    examples=35,
    lines=st.lists(KNOWN, max_size=5),
    noise=st.binary(max_size=20),
    name=st.sampled_from(["a", "[a]:22", "", "é"]),
)
def test_known_hosts_are_read_line_by_line(unheard: list[object], lines: list[str], noise: bytes, name: str) -> None:
    path = Path.home() / "known_hosts"
    good = f"good ssh-ed25519 {base64.b64encode(KEY).decode()}"
    path.write_bytes("\n".join([*lines, good]).encode("utf-8", "surrogatepass") + b"\n" + noise)
    entries = list(known_hosts.read_known_hosts([path]))
    for entry in entries:
        entry.names(name)
        assert str(entry.key)
        assert entry.key.fingerprint
    assert any(entry.hosts == "good" and entry.key.blob == KEY for entry in entries)
