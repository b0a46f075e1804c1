"""The part of the suite that runs programs on a transport and checks its channels against their contract."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from connmgr.errors import TransportUnsupported
from connmgr.plugin import Channel, Pty, Transport
from connmgr.testing.link import WAIT_SECONDS, Outcome, finish, run, script

ODD_WORDS = [
    "",
    "a b",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "*",
    "\\",
    "\\n",
    "new\nline",
    "-n",
    "~",
    "!",
    "#",
    "%s",
    "\udce4",
]
EVERY_BYTE = bytes(range(256)) * 8
LARGE_BYTES = 1 << 20
BIG_OUTPUT = f"x=0123456789abcdef; while [ ${{#x}} -lt {LARGE_BYTES} ]; do x=$x$x; done; printf %s $x; printf %s $x >&2"
ENDLESS = "echo begun; sleep 120"
"""Outlasts each wait of these tests, and ends by itself if closing a channel does not end its program."""
SAYS_ITS_SIZE = "echo begun; until [ \"$(stty size)\" = '43 132' ]; do sleep 0.02; done; echo told; sleep 120"

Start = Callable[..., Channel]


class ChannelConformance:
    """Checks :class:`connmgr.plugin.Channel` with real programs; ``transport`` is a fixture of the subclass."""

    has_terminals = True
    """Whether ``open_channel`` offers terminals; otherwise it must raise TransportUnsupported."""

    @pytest.fixture
    def start(self, transport: Transport) -> Iterator[Start]:
        """A function that starts a script on a channel, which the end of the test closes."""
        opened: list[Channel] = []

        def start(text: str, *arguments: str, **options: Any) -> Channel:
            opened.append(transport.open_channel(script(text, *arguments), timeout=WAIT_SECONDS, **options))
            return opened[-1]

        yield start
        for channel in opened:
            channel.close()

    def test_both_streams_and_the_status_arrive(self, start: Start) -> None:
        channel = start("echo out; echo err >&2; exit 3")
        outcome = finish(channel)
        assert outcome.status == 3
        if channel.merged:
            assert outcome.stdout.startswith(b"out\n")
        else:
            assert outcome == Outcome(3, b"out\n", b"err\n")

    def test_argv_arrives_word_by_word(self, start: Start) -> None:
        outcome = finish(start('for word; do printf "%s\\0" "$word"; done', *ODD_WORDS))
        assert outcome.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in ODD_WORDS]

    def test_every_byte_passes_both_ways(self, start: Start) -> None:
        channel = start(f"head -c {len(EVERY_BYTE)}")
        channel.sendall(EVERY_BYTE, WAIT_SECONDS)
        assert finish(channel).stdout == EVERY_BYTE

    def test_input_that_does_not_wait_arrives_whole_or_is_refused(self, start: Start) -> None:
        # Sent in pieces and without a period, so that bytes which were written and not counted, and come again, differ.
        data = b"".join(b"%d," % number for number in range(1000))
        channel = start(f"head -c {len(data)}")
        sent = 0
        with suppress(TimeoutError):
            while sent < len(data):
                sent += channel.send_now(data[sent : sent + 500])
        if sent < len(data):
            channel.sendall(data[sent:], WAIT_SECONDS)
        assert finish(channel).stdout == data

    def test_input_that_must_not_wait_is_refused_in_the_end_where_nobody_reads_it(self, start: Start) -> None:
        channel = start(ENDLESS)
        with pytest.raises(TimeoutError):
            _write_now_without_end(channel)

    def test_large_input_arrives_whole(self, start: Start) -> None:
        channel = start(f'x=$(head -c {LARGE_BYTES}); echo "${{#x}}"')
        channel.sendall(b"a" * LARGE_BYTES, WAIT_SECONDS)
        assert finish(channel).stdout == b"%d\n" % LARGE_BYTES

    def test_large_output_arrives_whole_although_the_other_stream_is_full_too(self, start: Start) -> None:
        channel = start(BIG_OUTPUT)
        outcome = finish(channel)
        assert outcome.stdout[:LARGE_BYTES] == b"0123456789abcdef" * (LARGE_BYTES // 16)
        assert channel.merged or outcome.stderr == outcome.stdout

    def test_shutdown_write_ends_the_input(self, start: Start) -> None:
        channel = start("cat; echo end")
        if channel.merged:
            pytest.skip("a terminal that passes every byte has none that ends the input")
        channel.sendall(b"begin ", WAIT_SECONDS)
        channel.shutdown_write()
        assert finish(channel).stdout == b"begin end\n"

    @pytest.mark.parametrize("status", [0, 1, 127, 255])
    def test_an_exit_status_is_returned(self, start: Start, status: int) -> None:
        assert finish(start(f"exit {status}")).status == status

    @pytest.mark.parametrize(("signal", "number"), [("KILL", 9), ("TERM", 15)])
    def test_a_signal_is_returned_as_128_and_its_number(self, start: Start, signal: str, number: int) -> None:
        assert finish(start(f"kill -{signal} $$")).status == 128 + number

    def test_the_exit_status_times_out_while_the_process_runs(self, start: Start) -> None:
        channel = start(ENDLESS)
        with pytest.raises(TimeoutError):
            channel.exit_status(0.05)

    def test_an_end_is_told_once_if_at_all(self, start: Start) -> None:
        channel, ended = start("read line; exit 3"), threading.Semaphore(0)
        if not channel.when_ended(ended.release):
            return
        assert not ended.acquire(blocking=False), "it runs"
        channel.sendall(b"line\n", WAIT_SECONDS)
        assert ended.acquire(timeout=WAIT_SECONDS)
        assert channel.exit_status(0) == 3
        # Of a process that has ended, and of a closed channel, it is told at once.
        channel.when_ended(ended.release)
        assert ended.acquire(timeout=WAIT_SECONDS)
        channel.close()
        channel.when_ended(ended.release)
        assert ended.acquire(timeout=WAIT_SECONDS)
        assert not ended.acquire(blocking=False)

    def test_recv_returns_nothing_when_its_time_is_over(self, start: Start) -> None:
        channel = start(ENDLESS)
        read_until(channel, b"begun\n")
        for timeout in (0.05, 0, -1):
            assert channel.recv(timeout) == (b"", b""), timeout

    def test_recv_returns_as_soon_as_something_came(self, start: Start) -> None:
        channel = start("echo now; sleep 120")
        assert _Call(lambda: channel.recv(WAIT_SECONDS * 2)).result()[0].startswith(b"now")

    def test_recv_returns_errors_as_soon_as_they_came(self, start: Start) -> None:
        channel = start("echo now >&2; sleep 120")
        if not channel.merged:
            assert _Call(lambda: channel.recv(WAIT_SECONDS * 2)).result() == (b"", b"now\n")

    def test_the_end_of_both_streams_is_told_each_time(self, start: Start) -> None:
        channel = start("exit 0")
        finish(channel)
        for _ in range(2):
            with pytest.raises(EOFError):
                channel.recv(WAIT_SECONDS)

    def test_writing_times_out_when_the_process_does_not_read(self, start: Start) -> None:
        channel = start(ENDLESS)
        with pytest.raises(TimeoutError):
            _write_without_end(channel, 0.2)

    def test_writing_to_a_process_that_has_ended_is_an_error(self, start: Start) -> None:
        channel = start("exit 0")
        finish(channel)
        with pytest.raises(OSError) as refusal:  # noqa: PT011 - which one is the system's choice
            _write_without_end(channel, WAIT_SECONDS)
        assert not isinstance(refusal.value, TimeoutError)

    @pytest.mark.parametrize("call", ["recv", "sendall"])
    def test_close_wakes_a_blocked_call_at_once(self, start: Start, call: str) -> None:
        channel = start(ENDLESS)
        read_until(channel, b"begun\n")
        blocked = _Call(
            lambda: channel.recv(WAIT_SECONDS * 2) if call == "recv" else _write_without_end(channel, WAIT_SECONDS * 2)
        )
        time.sleep(
            0.1
        )  # nothing shows that a thread has begun to wait; too short a pause is not a fault, but proves less
        channel.close()
        assert isinstance(blocked.error(), EOFError | OSError)
        assert not isinstance(blocked.error(), TimeoutError)

    def test_close_may_be_repeated(self, start: Start) -> None:
        channel = start(ENDLESS)
        for _ in range(3):
            channel.close()
        with pytest.raises((EOFError, OSError)):
            channel.recv(0)

    def test_close_ends_a_process_that_reads(self, transport: Transport, start: Start) -> None:
        channel = start("echo $$; cat")
        pid = int(read_until(channel, b"\n"))
        channel.close()
        rounds = f"{WAIT_SECONDS:.0f}"
        gone = f"n=0; while kill -0 {pid} && [ $n -lt {rounds} ]; do sleep 1; n=$((n+1)); done; exec kill -0 {pid}"
        assert run(transport, script(gone)).status != 0, "the process outlives its channel"

    def test_channels_do_not_wait_for_each_other(self, start: Start) -> None:
        channels = [start(f"head -c 3; exit {number}") for number in range(4)]
        for number, channel in reversed(list(enumerate(channels))):
            channel.sendall(b"no%d" % number, WAIT_SECONDS)
        for number, channel in enumerate(channels):
            assert finish(channel)[:2] == (number, b"no%d" % number)

    def test_threads_share_a_transport(self, transport: Transport) -> None:
        scripts = [script(f"{BIG_OUTPUT}; exit {number}") for number in range(4)]
        calls = [_Call(partial(run, transport, argv)) for argv in scripts]
        assert [call.result().status for call in calls] == [0, 1, 2, 3]

    def test_a_terminal_is_given_where_one_is_asked_for(self, start: Start) -> None:
        if not self.has_terminals:
            with pytest.raises(TransportUnsupported):
                start("exit", pty=Pty())
            return
        channel = start("test -t 0 && test -t 1 && echo terminal; echo err >&2", pty=Pty())
        assert channel.merged
        assert finish(channel).stdout.replace(b"\r\n", b"\n") == b"terminal\nerr\n"

    def test_a_terminal_is_told_its_size(self, start: Start) -> None:
        if not self.has_terminals:
            with pytest.raises(TransportUnsupported):
                start(ENDLESS).resize(132, 43)
            return
        # The programs stay, because some clients (lxc) lose the last output of a program on a terminal.
        told = read_until(start('stty size; echo "$TERM"; sleep 120', pty=Pty("vt220", 99, 33)), b"vt220")
        assert told.split() == [b"33", b"99", b"vt220"]
        channel = start(SAYS_ITS_SIZE, pty=Pty())
        read_until(channel, b"begun")
        deadline = time.monotonic() + WAIT_SECONDS
        told = b""
        while b"told" not in told:
            assert time.monotonic() < deadline, f"the program was not told its size, and wrote {told!r}"
            # Again, because a client such as docker's misses a size that comes before it watches for sizes.
            channel.resize(131, 43)
            channel.resize(132, 43)
            told += channel.recv(1)[0]

    def test_output_is_read_while_input_waits(self, start: Start) -> None:
        channel = start("cat")
        writing = _Call(partial(channel.sendall, (b"x" * 63 + b"\n") * (LARGE_BYTES // 16), WAIT_SECONDS))
        received = 0
        deadline = time.monotonic() + WAIT_SECONDS
        while received < 4 * LARGE_BYTES:
            assert time.monotonic() < deadline, f"{received} bytes came back"
            received += len(channel.recv(1)[0])
        writing.result()

    def test_a_descriptor_tells_of_news_and_of_nothing_else(self, start: Start) -> None:
        channel = start('echo begun; read line; echo "$line"; exit 3')
        descriptor = channel.fileno()
        if descriptor is None:
            pytest.skip("the daemon waits for these channels by threads")
        _await_news(channel, descriptor, b"begun\n")
        assert not _is_readable(descriptor, 0.1), "it tells of news, and there is none"
        channel.sendall(b"again\n", WAIT_SECONDS)
        _await_news(channel, descriptor, b"again\n")
        with pytest.raises(EOFError):
            _await_news(channel, descriptor, b"nothing more")
        assert channel.exit_status(WAIT_SECONDS) == 3

    def test_a_process_without_a_terminal_has_no_size(self, start: Start) -> None:
        channel = start(ENDLESS)
        if not channel.merged:
            with pytest.raises(TransportUnsupported):
                channel.resize(132, 43)

    def test_closed_channels_leave_nothing_behind(self, transport: Transport) -> None:
        def use() -> None:
            run(transport, script("echo out"))
            transport.open_channel(script(ENDLESS), timeout=WAIT_SECONDS).close()

        assert_leaves_nothing(use)


class _Call:
    """A call in its own thread, which must end in time."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self._error = error

    def error(self) -> BaseException | None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the call is still blocked"
        return self._error

    def result(self) -> Any:
        error = self.error()
        if error is not None:
            raise error
        return self._result


def assert_leaves_nothing(use: Callable[[], None], rounds: int = 3) -> None:
    """Fail if descriptors or threads increase between calls of ``use``, the first excepted."""
    use()
    before = _held()
    for _ in range(rounds):
        use()
    deadline = time.monotonic() + WAIT_SECONDS
    while any(now > then for now, then in zip(_held(), before, strict=True)):
        assert time.monotonic() < deadline, f"(descriptors, threads) were {before}, and after {rounds} rounds {_held()}"
        time.sleep(0.02)


def _held() -> Sequence[int]:
    return len(os.listdir("/dev/fd")), threading.active_count()  # noqa: PTH208 - pathlib follows each entry


def read_until(channel: Channel, end: bytes) -> bytes:
    """Return the standard output of ``channel`` up to a piece that contains ``end``."""
    received = b""
    deadline = time.monotonic() + WAIT_SECONDS
    while end not in received:
        assert time.monotonic() < deadline, f"{end!r} did not come, but {received!r}"
        received += channel.recv(1)[0]
    return received


def _await_news(channel: Channel, descriptor: int, end: bytes) -> None:
    received = channel.recv(0)[0]
    while end not in received:
        assert _is_readable(descriptor, WAIT_SECONDS), f"{end!r} did not come, but {received!r}"
        received += channel.recv(0)[0]


def _is_readable(descriptor: int, timeout: float) -> bool:
    return bool(select.select([descriptor], [], [], timeout)[0])


def _write_now_without_end(channel: Channel) -> None:
    for _ in range(1 << 18):
        assert channel.send_now(bytes(4096)) > 0, "nothing was written, and it does not say so"
    pytest.fail("The channel accepted a gigabyte that nobody reads.")


def _write_without_end(channel: Channel, timeout: float) -> None:
    for _ in range(1 << 10):
        channel.sendall(bytes(LARGE_BYTES), timeout)
    pytest.fail("The channel accepted a gigabyte that nobody reads.")
