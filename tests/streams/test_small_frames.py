"""Many small frames or upgrades of one client: others have their turn in between, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import SimpleNamespace

import flask
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection

from connmgr.api import stream_endpoint
from connmgr.api.stream_endpoint import HAND_OVER, UPGRADE_REST
from connmgr.computing import REST, Computing, Rests
from connmgr.pipes.clients import FRAMES_AT_ONCE, SMALL_FRAME_BYTES, Opening, WebSocket
from connmgr.streams.loop import Loop
from tests.api.wire import LOCAL, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.rights.wire import create
from tests.streams.wire import Stream

HEADERS = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}
OTHER = b"the turn of another"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close(DEADLINE_SECONDS)


def fragment(opcode: int, payload: bytes = b"", *, is_final: bool = True) -> bytes:
    """Return a client's frame of up to 125 bytes, masked with zeros."""
    return bytes((0x80 * is_final | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload


class Handled(list[bytes]):
    """The frames of a client of ``holder``'s in the order in which they are handled, and who rested.

    The client sends ``before``, which is encoded already, then ``sent``.
    """

    def __init__(self, loop: Loop, holder: str | None, sent: Sequence[bytes], before: bytes = b"") -> None:
        super().__init__()
        self.rested: list[str | None] = []
        self._loop = loop
        over = threading.Event()
        ours, theirs = socket.socketpair()
        with closing(ours):
            opening = Opening(HEADERS.get)
            opening.holder = holder
            opening.rests.after = self._rest  # type: ignore[method-assign]
            opening.accept(theirs)
            assert ours.recv(65536).startswith(b"HTTP/1.1 101 ")
            client = Connection(ConnectionType.CLIENT)
            frames = [client.send(BytesMessage(frame)) for frame in sent]
            threading.Thread(
                target=ours.sendall, args=(b"".join([before, *frames, client.send(CloseConnection(1000))]),)
            ).start()
            loop.call(lambda: WebSocket(loop, opening, received=self._received, refused=lambda _: None, left=over.set))
            assert over.wait(DEADLINE_SECONDS)

    def _rest(self, holder: str | None, used: float) -> float:
        assert used > 0
        self.rested.append(holder)
        return 0.0

    def _received(self, frame: bytes) -> None:
        if not self:
            self._loop.call(lambda: self.append(OTHER))
        self.append(frame)


@pytest.mark.parametrize("holder", ["token", None])
def test_others_have_their_turn_between_small_frames_and_the_client_rests(loop: Loop, holder: str | None) -> None:
    frames = [b"%d" % number for number in range(10 * FRAMES_AT_ONCE)]
    handled = Handled(loop, holder, frames)
    assert handled.index(OTHER) == FRAMES_AT_ONCE
    assert [frame for frame in handled if frame != OTHER] == frames
    assert handled.rested == [holder] * 10


def test_pieces_of_a_message_are_small_frames_too(loop: Loop) -> None:
    message = [fragment(2, b"\0", is_final=False), *[fragment(0, is_final=False)] * (10 * FRAMES_AT_ONCE - 2)]
    handled = Handled(loop, "token", [], b"".join([*message, fragment(0, b"whole")]))
    assert [frame for frame in handled if frame != OTHER] == [b"\0whole"]
    assert handled.rested == ["token"] * 10


def test_large_frames_need_no_rest(loop: Loop) -> None:
    frames = [bytes(SMALL_FRAME_BYTES)] * 5 * FRAMES_AT_ONCE
    handled = Handled(loop, "token", frames)
    assert [frame for frame in handled if frame != OTHER] == frames
    # The close frame is small, as is the end of a frame that came in two pieces.
    assert not handled.rested


def test_a_token_rests_for_all_its_clients_and_the_owner_never() -> None:
    rests = Rests(Computing(), rest=REST)
    assert rests.after(None, 5.0) == 0
    first = rests.after("token", 5.0)
    assert first == pytest.approx(5.0 * REST)
    assert rests.after("token", 5.0) == pytest.approx(2 * first, abs=1.0)
    assert rests.after("another", 0.0) == 0


@pytest.mark.parametrize("is_owner", [True, False])
def test_sizes_before_input_lose_nothing(own_daemon: Daemon, is_owner: bool) -> None:
    token = token_of(own_daemon) if is_owner else create(own_daemon, "shell.any", "terminal").secret
    with closing(Stream(own_daemon.url, "/shell/pipe", token)) as stream:
        stream.ask(connection=LOCAL, command="read -r line; stty size; echo $line", pty=True)
        for number in range(1, 300):
            stream.resize(100 + number, 30)
        stream.write(b"typed\n")
        ended = stream.finish()
    assert (ended.status, ended.stdout.splitlines()[-2:]) == (0, [b"30 399", b"typed"])


def test_upgrades_of_a_token_have_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []

    class Upgrades:
        @contextmanager
        def turn(self, holder: str | None, rest: float) -> Iterator[None]:
            events.append((holder, rest))
            yield
            events.append("over")

    ours, theirs = socket.socketpair()
    monkeypatch.setattr(stream_endpoint, "services", lambda: SimpleNamespace(upgrades=Upgrades()))
    monkeypatch.setattr(stream_endpoint, "request_context", lambda: SimpleNamespace(holder="token"))
    opening = Opening(HEADERS.get)
    app = flask.Flask(__name__)
    with closing(ours), closing(theirs), app.test_request_context(environ_overrides={HAND_OVER: lambda: theirs}):
        stream_endpoint._accept(opening)
        events.append(ours.recv(65536)[:13])
    assert events == [("token", UPGRADE_REST), "over", b"HTTP/1.1 101 "]
