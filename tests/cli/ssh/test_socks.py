"""The greetings of SOCKS clients, and the answers."""

from __future__ import annotations

import pytest

from connmgr.streams.listener import Greeting, SocksRequest

V4 = b"\x04\x01\x00\x50\x7f\x00\x00\x01me\x00"
V4A = b"\x04\x01\x00\x50\x00\x00\x00\x01me\x00web.example\x00"
V5 = b"\x05\x01\x00\x05\x01\x00\x03\x0bweb.example\x00\x50"
V5_IPV4 = b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"
V5_IPV6 = b"\x05\x02\x02\x00\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50"


@pytest.mark.parametrize(
    ("said", "host", "answer"),
    [
        (V4, "127.0.0.1", b"\x00\x5a" + bytes(6)),
        (V4A, "web.example", b"\x00\x5a" + bytes(6)),
        (V5, "web.example", b"\x05\x00\x05\x00\x00\x01" + bytes(6)),
        (V5_IPV4, "127.0.0.1", b"\x05\x00\x05\x00\x00\x01" + bytes(6)),
        (V5_IPV6, "::1", b"\x05\x00\x05\x00\x00\x01" + bytes(6)),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_greeting_tells_where_the_client_wants_to_in_whatever_pieces(
    said: bytes, host: str, answer: bytes, size: int
) -> None:
    greeting, answered, asked = Greeting(), b"", None
    for start in range(0, len(said), size):
        assert asked is None
        asked = greeting.take(said[start : start + size])
        answered += greeting.answer()
    assert (asked, answered) == (SocksRequest(host, 80, b""), answer)


def test_bytes_sent_with_the_greeting_are_kept() -> None:
    assert Greeting().take(V4 + b"GET /") == SocksRequest("127.0.0.1", 80, b"GET /")
    assert Greeting().take(V4A + b"GET /") == SocksRequest("web.example", 80, b"GET /")
    assert Greeting().take(V5 + b"GET /") == SocksRequest("web.example", 80, b"GET /")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1", id="HTTP"),
        pytest.param(b"\x04\x02" + V4[2:], id="to listen"),
        pytest.param(b"\x05\x01\x02", id="a password"),
        pytest.param(V5.replace(b"\x05\x01\x00\x03", b"\x05\x03\x00\x03"), id="datagrams"),
        pytest.param(V5_IPV4.replace(b"\x00\x01\x7f", b"\x00\x07\x7f"), id="another kind of address"),
        pytest.param(V5.replace(b"web.example", b"\xff" * 11), id="a name that is none"),
        pytest.param(b"\x04\x01\x00\x50\x7f\x00\x00\x01" + b"x" * 2000, id="a user without end"),
        pytest.param(b"\x05\x01\x00" + V4, id="version 5, then 4"),
        pytest.param(b"\x05\x01\x00" + b"\x06" + V5[4:], id="version 5, then 6"),
    ],
)
@pytest.mark.parametrize("first", [3, 4, 3000])
def test_a_malformed_greeting_is_refused(said: bytes, first: int) -> None:
    greeting = Greeting()
    with pytest.raises(ValueError):  # noqa: PT011,PT012 - each is one, and either piece may show it
        assert greeting.take(said[:first]) is None
        greeting.take(said[first:])


BIND, UDP = (V5_IPV4.replace(b"\x05\x01\x00\x01", b"\x05" + command + b"\x00\x01") for command in (b"\2", b"\3"))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(BIND, b"\x05\x00\x05\x07\x00\x01" + bytes(6), id="to listen"),
        pytest.param(UDP, b"\x05\x00\x05\x07\x00\x01" + bytes(6), id="datagrams"),
        pytest.param(b"\x04\x02" + V4[2:], b"\x00\x5b" + bytes(6), id="to listen, in version 4"),
        pytest.param(b"\x05\x01\x02", b"\x05\xff", id="a password"),
        pytest.param(
            V5_IPV4.replace(b"\x00\x01\x7f", b"\x00\x07\x7f"),
            b"\x05\x00\x05\x08\x00\x01" + bytes(6),
            id="another kind of address",
        ),
    ],
)
def test_a_client_that_asks_for_what_there_is_not_is_told_so(said: bytes, answer: bytes) -> None:
    greeting = Greeting()
    with pytest.raises(ValueError):  # noqa: PT011 - each is one
        greeting.take(said)
    assert greeting.answer() == answer
