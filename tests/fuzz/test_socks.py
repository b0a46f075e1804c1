"""Greetings of SOCKS clients: whatever comes in whatever pieces is a request or refused, and little of it is kept."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

from hypothesis import strategies as st

from connmgr.streams.listener import CONNECT, IPV4, IPV6, MAX_GREETING_BYTES, NAME, Greeting, SocksRequest
from tests.fuzz.rounds import fuzz

NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=255)
PORT = st.integers(0, 65535)
USER = st.binary(max_size=20).map(lambda user: user.replace(b"\0", b""))
CUTS = st.lists(st.integers(0, 2000), max_size=8)
REST = st.binary(max_size=20)


def version_4(command: int, port: int, address: bytes, user: bytes) -> bytes:
    return struct.pack("!BBH", 4, command, port) + address + user + b"\0"


def version_5(methods: bytes, command: int, kind: int, address: bytes, port: int) -> bytes:
    return bytes((5, len(methods))) + methods + bytes((5, command, 0, kind)) + address + struct.pack("!H", port)


VALID = st.one_of(
    st.builds(
        lambda port, address, user: (version_4(CONNECT, port, address.packed, user), str(address), port),
        PORT,
        st.ip_addresses(v=4).filter(lambda address: address.packed[:3] != bytes(3)),
        USER,
    ),
    st.builds(
        lambda port, name, user: (version_4(CONNECT, port, b"\0\0\0\1", user) + name.encode() + b"\0", name, port),
        PORT,
        NAMES,
        USER,
    ),
    st.builds(
        lambda methods, address, port: (
            version_5(methods + b"\0", CONNECT, {4: IPV4, 6: IPV6}[address.version], address.packed, port),
            str(address),
            port,
        ),
        st.binary(max_size=254),
        st.ip_addresses(),
        PORT,
    ),
    st.builds(
        lambda methods, name, port: (
            version_5(methods + b"\0", CONNECT, NAME, bytes((len(name),)) + name.encode(), port),
            name,
            port,
        ),
        st.binary(max_size=254),
        NAMES,
        PORT,
    ),
)
DAMAGED = st.builds(
    lambda valid, at, byte, end: (valid[0][: at % len(valid[0])] + bytes((byte,)) + valid[0][at % len(valid[0]) + 1 :])[
        :end
    ],
    VALID,
    st.integers(0, 600),
    st.integers(0, 255),
    st.integers(1, 700),
)
ANY = st.one_of(
    st.binary(max_size=2 * MAX_GREETING_BYTES),
    DAMAGED,
    st.builds(bytes.__add__, st.sampled_from([b"\4\1\0P\1\2\3\4", b"\5\1\0", b"\5\xff"]), st.binary(max_size=1100)),
    st.sampled_from([b"\4\1\0P\1\2\3\4" + b"u" * 3000, b"\5\1\0" + b"\5\1\0\3\xff" + b"n" * 254]),
)


def asked(greeting: Greeting, content: bytes, cuts: Sequence[int]) -> tuple[SocksRequest | None, bytes]:
    """Return what a client asks for that sends ``content`` cut at ``cuts``, and the answers.

    :raises ValueError: it is refused.
    """
    answers, ends = b"", [*sorted({cut % (len(content) + 1) for cut in cuts} - {0}), len(content)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if start == end:
            continue
        try:
            found = greeting.take(content[start:end])
        finally:
            assert len(greeting._received) <= MAX_GREETING_BYTES + end - start
        answers += greeting.answer()
        if found is not None:
            return found._replace(rest=found.rest + content[end:]), answers
    return None, answers


@fuzz(examples=60, valid=VALID, rest=REST, cuts=CUTS)
def test_a_request_is_read_whatever_the_pieces(valid: tuple[bytes, str, int], rest: bytes, cuts: list[int]) -> None:
    content, host, port = valid
    found, answers = asked(Greeting(grants=False), content + rest, cuts)
    assert found == SocksRequest(host, port, rest)
    assert answers == (b"\5\0" if content[0] == 5 else b"")
    assert asked(Greeting(grants=False), content[:-1], cuts)[0] is None


@fuzz(examples=150, content=ANY, cuts=CUTS, grants=st.booleans())
def test_anything_else_is_refused_or_waited_for(content: bytes, cuts: list[int], grants: bool) -> None:
    outcomes = []
    for pieces in (cuts, []):
        try:
            found, _ = asked(Greeting(grants=grants), content, pieces)
        except ValueError:
            outcomes.append("refused")
        else:
            outcomes.append(repr(found))
            if found is not None:
                assert 0 <= found.port <= 65535
                assert found.host.isascii()
    # Too many bytes at once are refused where the same in pieces could be a request with data behind it.
    assert outcomes[0] == outcomes[1] or len(content) > MAX_GREETING_BYTES


@fuzz(examples=30, address=st.ip_addresses())
def test_both_answers_are_of_the_version_that_asks(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    kind = {4: IPV4, 6: IPV6}[address.version]
    for content, lengths in (
        (version_4(CONNECT, 1, b"\1\2\3\4", b""), 8),
        (version_5(b"\0", CONNECT, kind, address.packed, 1), 10),
    ):
        greeting = Greeting(grants=False)
        asked(greeting, content, [])
        granted, refused = greeting.reply(True), greeting.reply(False)
        assert len(granted) == len(refused) == lengths
        assert granted != refused
