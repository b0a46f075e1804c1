"""The marked stream, however it is cut into pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.engine.envelope import MarkedStream

NONCE = "AAECAwQFBgcICQoLDA0ODw"
MARK = b":" + NONCE.encode()


def stream(output: bytes, trap: bytes = b"", status: int = 7) -> bytes:
    state = MARK + b"c\n/home/x\n" + MARK + b"v\nexport A='1'\n" + MARK + b"x\n"
    return output + state + trap + MARK + b" %d\n" % status + b"late junk"


def check(reader: MarkedStream, output: bytes) -> None:
    assert reader.ended
    assert bytes(reader.output) == output
    assert reader.status == 7
    assert reader.state == (b"/home/x", b"export A='1'\n")


def test_split_at_every_byte() -> None:
    for output in (b"", b"x", b"\n", b"no newline", b"a\n\n\n", MARK[:-1], MARK[:-1] + b"\n", NONCE.encode()):
        whole = stream(output, b"bye\n")
        for at in range(len(whole) + 1):
            reader = MarkedStream(NONCE, 1000)
            reader.parse(whole[:at])
            reader.parse(whole[at:])
            check(reader, output + b"bye\n")


def test_newlines_that_a_terminal_translates() -> None:
    reader = MarkedStream(NONCE, 1000)
    reader.parse(stream(b"hi\n").replace(b"\n", b"\r\n"))
    check(reader, b"hi\r\n")


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\n", MARK[:5], MARK[:-1], NONCE.encode()]))),
    st.lists(st.integers(1, 40)),
)
def test_random_chunks(pieces: list[bytes], sizes: list[int]) -> None:
    output = b"".join(pieces)
    if MARK in output:
        return
    rest, reader = stream(output), MarkedStream(NONCE, 10_000)
    for size in sizes:
        reader.parse(rest[:size])
        rest = rest[size:]
    reader.parse(rest)
    check(reader, output)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20))
def test_the_limit_cuts_the_output_and_nothing_else(limit: int, length: int, size: int) -> None:
    whole, reader = stream(b"x" * length), MarkedStream(NONCE, limit)
    for at in range(0, len(whole), size):
        reader.parse(whole[at : at + size])
    check(reader, b"x" * min(limit, length))
    assert reader.truncated == (length > limit)


def test_a_marker_of_another_command_is_output() -> None:
    other = b":" + b"f" * 22 + b" 0\n"
    reader = MarkedStream(NONCE, 1000)
    reader.parse(stream(other))
    check(reader, other)
