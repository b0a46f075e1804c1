"""Streams of the client against a scripted daemon."""

from __future__ import annotations

import json
import os
import socket

import pytest
from wsproto.frame_protocol import FrameProtocol

from connmgr.client import ClientError, Piece, Unreachable
from connmgr.client.pipe import WebSocket
from connmgr.streams import frames
from connmgr.streams.websocket import masked
from tests.client.stream_server import Accepted, StreamServer

MIB = 1024 * 1024


def test_a_pipe_carries_input_output_and_the_exit_status() -> None:
    requests = []

    def script(stream: Accepted) -> None:
        stream.accept()
        requests.append(stream.request())
        stream.data(stream.input()[::-1])
        stream.data(b"oops", frames.STDERR)
        stream.finish(143)

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "tac", pty=False) as pipe:
        pipe.send(b"cba")
        pipe.end_input()
        assert list(pipe) == [Piece(b"abc", b""), Piece(b"", b"oops")]
        assert pipe.exit_status == 143
    assert requests == [{"connection": "id", "command": "tac", "pty": False}]


def test_both_windows_are_kept_while_megabytes_go_both_ways() -> None:
    content = os.urandom(3 * MIB)

    def script(stream: Accepted) -> None:
        stream.accept()
        stream.request()
        held, unacknowledged, back = b"", 0, 0
        while True:
            message = stream.receive()
            assert isinstance(message, bytes | bytearray)
            if message[0] == frames.EOF:
                break
            if message[0] == frames.ACKNOWLEDGEMENT:
                back -= frames.count_in(bytes(message[1:]))
                assert back >= 0, "more was acknowledged than was sent"
                continue
            unacknowledged += len(message) - 1
            assert unacknowledged <= frames.WINDOW_BYTES, "the client sent more than its window"
            held += message[1:]
            if back + len(held) <= frames.WINDOW_BYTES:
                stream.data(held)
                stream.send(frames.acknowledgement(unacknowledged))
                back, held, unacknowledged = back + len(held), b"", 0
        assert not held
        stream.finish()

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "cat") as pipe:
        got = bytearray()
        for start in range(0, len(content), 65536):
            pipe.send(content[start : start + 65536])
            # The client acknowledges what its caller has read.
            while len(got) < start:
                for kind, piece in pipe.events():
                    assert kind == frames.DATA
                    got += piece
                    pipe.acknowledge(len(piece))
        pipe.end_input()
        got += b"".join(piece.stdout for piece in pipe)
    assert bytes(got) == content


def test_pings_are_answered_and_messages_may_come_in_pieces() -> None:
    pongs = []

    def script(stream: Accepted) -> None:
        stream.accept()
        stream.request()
        stream.ping(b"there?")
        server = FrameProtocol(client=False, extensions=[])
        whole = server.send_data(b"\x00one", fin=False) + server.ping(b"") + server.send_data(b" two", fin=True)
        for byte in bytes(whole):
            stream.raw(bytes((byte,)))
        assert stream.input() == b""
        pongs.extend(stream.pongs)
        stream.finish()

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "true") as pipe:
        output = iter(pipe)
        assert next(output) == Piece(b"one two", b"")
        pipe.end_input()
        assert list(output) == []
    assert pongs == [b"there?", b""]


def test_frames_sent_with_the_upgrade_s_answer_are_read() -> None:
    def script(stream: Accepted) -> None:
        answer = []
        stream.raw = answer.append  # type: ignore[method-assign,assignment]
        stream.accept()
        stream.data(b"early")
        stream.finish(7)
        stream.socket.sendall(b"".join(answer))
        stream.request()

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "true") as pipe:
        assert list(pipe) == [Piece(b"early", b"")]
        assert pipe.exit_status == 7


def _error(stream: Accepted) -> None:
    stream.send(bytes((frames.ERROR,)), json.dumps({"code": "no_shell", "message": "Gone."}).encode())
    stream.close(1011)


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        pytest.param(_error, "no_shell", "Gone.", id="an error"),
        pytest.param(lambda stream: stream.close(1001), "unreachable", "exit status", id="closed without a status"),
        pytest.param(lambda stream: stream.socket.close(), "unreachable", "broke", id="gone"),
        pytest.param(lambda stream: stream.raw(b"\x82\x05\x00ab"), "unreachable", "broke", id="gone within a frame"),
        pytest.param(lambda stream: stream.raw(b"\xc2\x01\x00"), "unknown", "not the daemon's", id="reserved bit"),
        pytest.param(lambda stream: stream.raw(b"\x82\x81\0\0\0\0\x00"), "unknown", "not the", id="masked"),
        pytest.param(lambda stream: stream.raw(b"\x82\x7f" + b"\xff" * 8), "unknown", "not the", id="endless frame"),
        pytest.param(lambda stream: stream.raw(b"\x82\x7e\xff\xff" * 2), "unreachable", "broke", id="unfinished"),
        pytest.param(lambda stream: stream.raw(b"\x83\x00"), "unknown", "not the", id="unknown opcode"),
        pytest.param(lambda stream: stream.raw(b"\x80\x00"), "unknown", "not the", id="continues nothing"),
        pytest.param(lambda stream: stream.raw(b"\x09\x00"), "unknown", "not the", id="a ping in pieces"),
        pytest.param(lambda stream: stream.raw(b"\x89\x7e\x00\x7e" + bytes(126)), "unknown", "not the", id="long ping"),
        pytest.param(lambda stream: stream.raw(b"\x81\x02hi"), "unknown", "not the daemon's", id="text"),
        pytest.param(lambda stream: stream.raw(b"\x82\x00"), "unknown", "not the daemon's", id="empty"),
        pytest.param(lambda stream: stream.send(b"\x2a"), "unknown", "not the daemon's", id="unknown kind"),
        pytest.param(lambda stream: stream.send(b"\x03\x01"), "unknown", "not the", id="short acknowledgement"),
        pytest.param(lambda stream: stream.send(frames.acknowledgement(1)), "unknown", "not the", id="taken too much"),
        pytest.param(lambda stream: stream.send(b"\x05\x01"), "unknown", "not the daemon's", id="short status"),
        pytest.param(
            lambda stream: stream.send(b"\x06no json"), "unknown", "not the daemon's", id="error without JSON"
        ),
        pytest.param(
            lambda stream: [stream.data(bytes(frames.WINDOW_BYTES)), stream.data(b"x")],
            "unknown",
            "not the daemon's",
            id="beyond the window",
        ),
    ],
)
def test_frames_that_no_daemon_sends_end_the_pipe_with_an_error(script: object, code: str, message: str) -> None:
    def act(stream: Accepted) -> None:
        stream.accept()
        stream.request()
        script(stream)  # type: ignore[operator]

    with StreamServer(act) as server, server.client() as client, client.shell.pipe("id", "true") as pipe:
        with pytest.raises(ClientError) as raised:
            for _ in iter(lambda: list(pipe.events()), None):
                pass
        assert raised.value.code == code
        assert message in raised.value.message
        assert pipe.exit_status is None


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b'HTTP/1.1 404 x\r\nContent-Length: 34\r\n\r\n{"code": "x_y", "message": "None"}', "x_y"),
        (b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n", "unknown"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "unknown"),
        (b"nonsense\r\n", "unreachable"),
    ],
)
def test_an_answer_that_opens_no_websocket_is_an_error(answer: bytes, code: str) -> None:
    with StreamServer(lambda stream: stream.raw(answer)) as server, server.client() as client:
        with pytest.raises(ClientError) as raised:
            client.shell.pipe("id", "true")
        assert raised.value.code == code


def test_a_token_that_is_not_known_any_more_is_replaced_once() -> None:
    body = b'{"code": "invalid_token", "message": "Expired."}'
    refusal = b"HTTP/1.1 401 x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    answers = [lambda stream: stream.raw(refusal), lambda stream: [stream.accept(), stream.request(), stream.finish(3)]]
    with StreamServer(lambda stream: answers.pop(0)(stream)) as server, server.client() as client:
        client.post("/handshake")
        with client.shell.pipe("id", "true") as pipe:
            assert (list(pipe), pipe.exit_status) == ([], 3)
        assert [path for path, _ in server.requests] == ["/handshake"] * 3


def test_input_that_nobody_takes_is_waited_for_no_longer_than_said() -> None:
    def script(stream: Accepted) -> None:
        stream.accept()
        while True:
            stream.receive()

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "true") as pipe:
        with pytest.raises(TimeoutError):
            pipe.send(bytes(frames.WINDOW_BYTES + 1), timeout=0.2)
        assert pipe.room == 0


def test_a_broken_connection_is_told_where_it_is_read() -> None:
    def script(stream: Accepted) -> None:
        stream.accept()
        stream.request()
        stream.socket.close()

    with StreamServer(script) as server, server.client() as client, client.shell.pipe("id", "true") as pipe:
        with pytest.raises(Unreachable, match="broke"):
            list(pipe)
        pipe.close()


@pytest.mark.parametrize(
    ("received", "code"),
    [
        (b"\x81\1x", 1003),
        (b"\x02\x7e\xff\xff" + bytes(65535) + b"\0\x7f" + (262145).to_bytes(8, "big") + bytes(262145), 1009),
        (b"\x82\x7f" + (262146).to_bytes(8, "big"), 1009),
        (b"\x88\1\3", 1002),
        (b"\x88\2\3\xed", 1002),
        (b"\x88\2\0\0", 1002),
        (b"\x88\3\3\xe8\xff", 1007),
        (b"\x83\0", 1002),
        (b"\x80\0", 1002),
    ],
)
def test_violations_of_the_protocol_close_with_their_code(received: bytes, code: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reading = WebSocket(ours, received)
        with pytest.raises(ClientError):
            list(reading.receive())
        opcode, length, *rest = theirs.recv(100)
        key, payload = bytes(rest[:4]), bytes(rest[4:])
    assert (opcode, length) == (0x88, 0x82)
    assert int.from_bytes(masked(payload, key), "big") == code
