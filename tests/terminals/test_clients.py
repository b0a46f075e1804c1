"""Attached clients of a terminal: they see the same, control its size and pace, and leave it running."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connmgr.terminals.emulator.screen import Screen
from tests.api.wire import send
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, settled
from tests.jobs.world import LOCAL, World
from tests.processes import Held
from tests.streams.wire import NotUpgradedError, Stream
from tests.terminals.desk import ENTER, Desk, Opened, RefusedError

WINDOW = 256 * 1024
SAYS_ITS_SIZE = (
    'echo ready; while :; do new=$(stty size); [ "$new" = "$old" ] || echo "$new"; old=$new; sleep 0.05; done'
)
MAX_TERMINALS = 16


@pytest.fixture
def local(running_world: World) -> str:
    return running_world.connection(LOCAL, "bash")


ROUNDS = 20


class Seen:
    """The screen of a client's terminal."""

    def __init__(self, stream: Stream, columns: int = 80, rows: int = 24) -> None:
        self.stream = stream
        self._screen = Screen(columns, rows)
        self._taken = 0

    def lines(self, contains: str) -> list[str]:
        """Wait until a line contains ``contains``, and return the lines that are not empty."""
        until = time.monotonic() + DEADLINE_SECONDS
        while True:
            output = self.stream.ended.stdout
            self._screen.take(output[self._taken :])
            self._taken = len(output)
            lines = [line for line in self._screen.grid.lines if line]
            if any(contains in line for line in lines):
                return lines
            assert time.monotonic() < until, f"{contains!r} is not shown: {lines}"
            assert self.stream.frames(), f"{contains!r} is not shown: {lines}, {self.stream.ended}"


def test_two_clients_see_the_same(place: str, desk: Desk) -> None:
    terminal = desk.open(place, 'echo before; while read line; do echo "<$line>"; done; exit 9')
    terminal.screen("before")
    first, second = Seen(terminal.attach()), Seen(terminal.attach())
    assert first.lines("before") == second.lines("before") == ["before"]
    first.stream.write(b"one\r")
    assert first.lines("<one>") == second.lines("<one>") == ["before", "one", "<one>"]
    second.stream.write(b"two\r")
    assert first.lines("<two>") == second.lines("<two>")
    second.stream.write(b"\x04")
    for seen in (first, second):
        ended = seen.stream.finish()
        assert (ended.status, ended.code) == (9, 1000)


@pytest.mark.needs("vim")
def test_a_client_is_killed_and_attaches_again(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "cd; vim -u NONE; echo over")
    first = Seen(terminal.attach())
    first.lines("~")
    first.stream.write(b"isome words")
    first.lines("some words")
    first.stream.close()
    eventually_equal(lambda: terminal.info["clients"], 0, "the daemon does not notice that the client has gone")
    again = Seen(terminal.attach())
    assert again.lines("some words")[1] == "~"
    again.stream.write(b"\x1b:q!\r")
    assert again.lines("over") == ["over"]


def test_the_last_attached_client_determines_the_size(local: str, desk: Desk) -> None:
    terminal = desk.open(local, SAYS_ITS_SIZE)
    terminal.screen("ready")
    first = terminal.attach()
    first.resize(100, 30)
    terminal.screen("30 100")
    second = terminal.attach()
    second.resize(60, 20)
    terminal.screen("20 60")
    watcher = terminal.attach(watch=True)
    watcher.resize(10, 10)
    eventually(lambda: watcher.frames() and watcher.ended.sizes, "the watcher is told no size")
    first.resize(101, 31)
    second.resize(61, 21)
    terminal.screen("21 61")
    second.close()
    # The first client determines the size again, by its latest size.
    terminal.screen("31 101")
    eventually(lambda: bool(watcher.frames()) and watcher.ended.sizes[-1] == (101, 31), "the watcher is not told")
    assert watcher.ended.sizes == [(60, 20), (61, 21), (101, 31)]
    assert first.ended.sizes[:1] == []


def test_a_watcher_does_not_type(local: str, desk: Desk) -> None:
    terminal = desk.open(local, "cat")
    watcher = terminal.attach(watch=True)
    watcher.write(b"x")
    ended = watcher.finish()
    assert (ended.error["code"], ended.code) == ("bad_frame", 1008)
    assert terminal.info["state"] == "running"


def test_a_client_that_does_not_acknowledge_pauses_the_program_for_five_seconds(local: str, desk: Desk) -> None:
    terminal = desk.open(local, "yes; :")
    lazy = terminal.attach(acknowledges=False)
    began = time.monotonic()
    while len(lazy.ended.stdout) < WINDOW:
        assert lazy.frames()
    waits = settled(lambda: terminal.ask("output", offset=1 << 52)["offset"], 0.5, "the program does not pause")
    eventually(
        lambda: terminal.ask("output", offset=1 << 52)["offset"],
        "the program waits on",
        holds=lambda seen: seen > waits + WINDOW,
    )
    assert time.monotonic() - began > 4
    assert len(lazy.ended.stdout) == WINDOW
    # The client acknowledges again, and the screen that it missed is drawn.
    lazy.acknowledges = True
    lazy.acknowledge(WINDOW)
    lazy.until(b"\x1b[?1049l\x1b[!p")
    terminal.type("\x03")
    Seen(lazy).lines("^C")


def test_a_watcher_that_does_not_acknowledge_pauses_nothing(local: str, desk: Desk) -> None:
    terminal = desk.open(local, "read go; seq 1 500000; echo the end; cat")
    lazy = terminal.attach(watch=True, acknowledges=False)
    assert lazy.frames()
    terminal.type(ENTER)
    terminal.screen("the end")
    while len(lazy.ended.stdout) < WINDOW:
        assert lazy.frames()
    lazy.acknowledges = True
    lazy.acknowledge(WINDOW)
    lazy.until(b"the end")
    # Of 3.4 MB the watcher was sent one window, and then the screen.
    assert len(lazy.ended.stdout) < 1 << 20


def test_a_client_that_attaches_to_an_ended_terminal_gets_its_exit_code(local: str, desk: Desk) -> None:
    terminal = desk.open(local, "echo done; exit 3")
    terminal.until_ended()
    late = terminal.attach()
    ended = late.finish()
    assert (b"done" in ended.stdout, ended.status, ended.code) == (True, 3, 1000)
    late = terminal.attach()
    late.write(b"ignored")
    assert late.finish().status == 3


def test_ten_thousand_resizes(local: str, desk: Desk, running_world: World) -> None:
    terminal = desk.open(local, "echo ready; cat")
    terminal.screen("ready")
    client = terminal.attach()
    for number in range(10_000):
        client.resize(1 + number % 200, 1 + number % 60)
    client.resize(70, 22)
    eventually_equal(lambda: terminal.info["rows"], 22, "the last size did not arrive")
    terminal.type("alive\r")
    assert "alive" in "".join(terminal.lines("alive"))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lambda stream: stream.say("text"), 1003),
        (lambda stream: stream.send(2, b"\0\0\0\0"), 1008),
        (lambda stream: stream.resize(4096, 4096), 1008),
        (lambda stream: stream.send(2, b"\0"), 1008),
        (lambda stream: stream.send(9), 1008),
        (lambda stream: stream.acknowledge(1 << 30), 1008),
        (lambda stream: stream.write(bytes(WINDOW + 1)), 1009),
    ],
    ids=["text", "no columns", "too large a size", "half a size", "unknown byte", "acknowledgement", "too large"],
)
def test_a_malformed_frame_disconnects_the_client_but_does_not_end_the_terminal(
    sent: Callable[[Stream], None], code: int, local: str, desk: Desk
) -> None:
    terminal = desk.open(local, "cat")
    client = terminal.attach()
    sent(client)
    ended = client.finish()
    assert (ended.error["code"], ended.code) == ("bad_frame", code)
    terminal.type("on\r")
    terminal.screen("on")


def refused(terminal: Opened, **options: object) -> str:
    with pytest.raises(NotUpgradedError) as error:
        terminal.attach(**options)  # type: ignore[arg-type]
    return error.value.answer.code


def test_attaching_needs_a_token_and_the_same_origin(local: str, desk: Desk) -> None:
    terminal = desk.open(local, "cat")
    assert refused(terminal, token=None) == "not_authenticated"
    assert refused(terminal, token="wrong") == "invalid_token"
    for origin in ("http://evil.example", "null", "https://127.0.0.1"):
        assert refused(terminal, headers={"Origin": origin}) == "forbidden_origin"
    assert refused(terminal, headers={"Sec-Fetch-Site": "cross-site"}) == "forbidden_origin"
    plain = send(desk.url, f"/terminal/attach/{terminal.id}", None, {"Authorization": f"Bearer {desk.token}"}, "GET")
    assert (plain.status, plain.code) == (426, "upgrade_required")
    with pytest.raises(NotUpgradedError) as error:
        Opened(desk, "00000000-0000-4000-8000-000000000000").attach()
    assert error.value.answer.code == "unknown_terminal"


def test_a_ticket_is_valid_once(local: str, desk: Desk) -> None:
    terminal, other = desk.open(local, "cat"), desk.open(local, "cat")

    def offered() -> dict[str, object]:
        ticket = terminal.ask("ticket")["ticket"]
        return {"token": None, "subprotocols": [f"connmgr.ticket.{ticket}", "connmgr.v1"]}

    ticket = offered()
    own = {"Origin": desk.url, "Sec-Fetch-Site": "same-origin"}
    client = terminal.attach(**ticket, headers=own)
    assert client.subprotocol == "connmgr.v1"
    client.write(b"by ticket\r")
    client.until(b"by ticket")
    assert refused(terminal, **ticket) == "invalid_token"
    # A ticket used for another terminal is refused, and used up.
    ticket = offered()
    assert refused(other, **ticket) == "invalid_token"
    assert refused(terminal, **ticket) == "invalid_token"
    assert refused(terminal, **offered(), headers={"Origin": "http://evil.example"}) == "forbidden_origin"


def test_the_terminals_of_a_connection_are_limited(local: str, desk: Desk) -> None:
    for _ in range(MAX_TERMINALS):
        last = desk.open(local, "sleep 1000")
    with pytest.raises(RefusedError) as error:
        desk.open(local, "sleep 1000")
    assert (error.value.status, error.value.code) == (503, "terminal_limit")
    last.ask("close")
    desk.open(local, "sleep 1000")


def test_closed_terminals_leave_no_descriptors_open(desk: Desk, local: str, running_world: World) -> None:
    desk.open(local, "true").until_ended()
    held = Held(running_world.pid)
    for _ in range(ROUNDS):
        terminal = desk.open(local, "echo ready; sleep 1000")
        stream = terminal.attach()
        stream.until(b"ready")
        terminal.ask("close")
        stream.finish()
    held.await_release(ROUNDS)


def test_recordings(desk: Desk, local: str, running_world: World) -> None:
    terminal = desk.open(local, "stty size; printf 'ü\\n'; read x; echo over", columns=70, rows=20, record=True)
    terminal.screen("ü")
    assert terminal.info["recording"] == "active"
    terminal.ask("resize", columns=90, rows=25)
    terminal.type(ENTER)
    assert terminal.until_ended()["recording"] == "complete"
    path = Path(running_world.data_dir, "recordings", f"{terminal.id}.cast")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    header, *events = map(json.loads, path.read_text().splitlines())
    assert {name: header[name] for name in ("version", "width", "height", "env")} == {
        "version": 2,
        "width": 70,
        "height": 20,
        "env": {"TERM": "xterm-256color"},
    }
    assert abs(header["timestamp"] - time.time()) < 60
    assert "".join(data for _, kind, data in events if kind == "o") == "20 70\r\nü\r\n\r\nover\r\n"
    assert [data for _, kind, data in events if kind == "r"] == ["90x25"]
    assert [moment for moment, _, _ in events] == sorted(moment for moment, _, _ in events)
