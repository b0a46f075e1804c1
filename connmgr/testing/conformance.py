"""The suite for connection types: how a type describes itself, its channels, the shell engine on it, and its streams.

:class:`ConnectionConformance` has all of it for types that open a transport, :class:`WrapperConformance` for wrappers.
"""

from __future__ import annotations

import copy
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connmgr.engine.envelope import Command
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.errors import CommandTimeout, OperationError, TransportUnsupported
from connmgr.fields import every_field, map_secrets
from connmgr.plugin import AnyConnectionType, ByteStream, Channel, Pty, Reference, Transport, ValidationError, Wrapper
from connmgr.registry import USAGE_CATEGORIES
from connmgr.testing.link import WAIT_SECONDS, Outcome, connect, finish, local, run, script

UNKNOWN = "aFieldThatNoTypeHas"


class SchemaConformance:
    """Checks name, description, fields and example of a connection type; ``kind`` is a fixture of the subclass."""

    @pytest.fixture
    def kind(self) -> AnyConnectionType:
        """The connection type to test."""
        raise NotImplementedError("Give the test class a fixture `kind` that returns the connection type.")

    @pytest.fixture
    def data(self, kind: AnyConnectionType) -> Mapping[str, Any]:
        """Valid data without ``type``, as a client sends it, secrets in plain."""
        return kind.example

    @pytest.fixture
    def loaded(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """``data`` as the schema loads it; tests must not change it."""
        loaded = kind.schema().load(data)
        before = copy.deepcopy(loaded)
        yield loaded
        assert loaded == before, "the data that it was given is not the type's to change"

    def test_the_name_is_a_word(self, kind: AnyConnectionType) -> None:
        assert kind.name.isascii(), "a name is typed by people and matched by filters"
        assert kind.name.replace("-", "").isalnum(), "a name is letters, digits and hyphens"

    def test_the_description_is_a_sentence(self, kind: AnyConnectionType) -> None:
        assert kind.description.endswith(".")
        assert kind.description == " ".join(kind.description.split()), "it is shown on one line"

    def test_the_usage_category_is_one_of_the_four(self, kind: AnyConnectionType) -> None:
        assert kind.usage_category in USAGE_CATEGORIES

    def test_every_field_is_described(self, kind: AnyConnectionType) -> None:
        missing = [
            path
            for path, field in every_field(kind.schema())
            if not (path.endswith("[]") or field.metadata.get("description"))
        ]
        assert missing == [], 'clients see metadata={"description": "…"}'

    def test_the_example_is_valid(self, kind: AnyConnectionType) -> None:
        assert kind.schema().validate(kind.example) == {}

    def test_via_names_a_reference(self, kind: AnyConnectionType) -> None:
        references = {path for path, field in every_field(kind.schema()) if isinstance(field, Reference)}
        assert kind.via in references if references else kind.via is None

    def test_an_unknown_field_is_refused(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> None:
        with pytest.raises(ValidationError) as refusal:
            kind.schema().load({**data, UNKNOWN: 1})
        assert UNKNOWN in refusal.value.messages, "derive the schema from connmgr.plugin.Schema"

    def test_no_field_takes_the_name_of_the_type_field(self, kind: AnyConnectionType) -> None:
        assert "type" not in kind.schema().fields

    def test_loading_what_was_loaded_changes_nothing(self, kind: AnyConnectionType, loaded: dict[str, Any]) -> None:
        # A client may send back what it read.
        assert kind.schema().load(loaded) == loaded


def secrets_of(kind: AnyConnectionType, loaded: Mapping[str, Any]) -> list[str]:
    """Return the secrets of loaded data, in plain."""
    secrets: list[str] = []
    map_secrets(kind.schema(), loaded, secrets.append)
    return secrets


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
        printed = read_until(start('stty size; echo "$TERM"; sleep 120', pty=Pty("vt220", 99, 33)), b"vt220")
        assert printed.split() == [b"33", b"99", b"vt220"]
        channel = start(SAYS_ITS_SIZE, pty=Pty())
        read_until(channel, b"begun")
        deadline = time.monotonic() + WAIT_SECONDS
        printed = b""
        while b"told" not in printed:
            assert time.monotonic() < deadline, f"the program was not told its size, and wrote {printed!r}"
            # Again, because a client such as docker's misses a size that comes before it watches for sizes.
            channel.resize(131, 43)
            channel.resize(132, 43)
            printed += channel.recv(1)[0]

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


OS_TYPES = {"linux", "macos", "bsd", "solaris", "aix", "windows", "unix"}
MAX_OUTPUT_BYTES = 1 << 22


class SessionConformance:
    """Checks that shells run; ``transport`` and ``loaded`` are fixtures of the subclass."""

    @pytest.fixture
    def session(self, transport: Transport, loaded: dict[str, Any]) -> Iterator[Session]:
        """A shell as ``/shell/start`` starts it."""
        session = Session(start_supervisor(transport, loaded.get("shell"), WAIT_SECONDS), transport, MAX_OUTPUT_BYTES)
        yield session
        session.stop(WAIT_SECONDS)

    def test_a_shell_starts_and_knows_where_it_is(self, session: Session) -> None:
        assert session.info.os_type in OS_TYPES
        assert session.info.os_name
        assert session.info.temp.startswith("/")

    def test_commands_run_with_their_streams_and_status(self, session: Session) -> None:
        result = session.exec(Command(b"echo out; echo err >&2; exit 5"), WAIT_SECONDS)
        assert result.exit_code == 5
        if session.info.tty_state == "none":
            assert (bytes(result.stdout), bytes(result.stderr)) == (b"out\n", b"err\n")
        else:
            assert sorted(result.stdout.splitlines()) == [b"err", b"out"]

    def test_directory_and_variables_last(self, session: Session) -> None:
        session.exec(Command(b'cd /; KEPT="it\'s"; export KEPT'), WAIT_SECONDS)
        result = session.exec(Command(b'pwd; echo "$KEPT"'), WAIT_SECONDS)
        assert bytes(result.stdout) == b"/\nit's\n"

    def test_large_output_arrives_whole(self, session: Session) -> None:
        result = session.exec(Command(BIG_OUTPUT.encode()), WAIT_SECONDS)
        assert bytes(result.stdout[:LARGE_BYTES]) == b"0123456789abcdef" * (LARGE_BYTES // 16)

    def test_standard_input_arrives(self, session: Session) -> None:
        data = bytes(range(256))
        assert bytes(session.exec(Command(b"cat", stdin=data), WAIT_SECONDS).stdout) == data

    def test_a_timeout_kills_the_command_and_the_shell_goes_on(self, session: Session) -> None:
        # Needs /proc or ps on the remote host, and a second channel that sees the shell's processes.
        with pytest.raises(CommandTimeout) as interruption:
            session.exec(Command(b"echo begun; sleep 120 | cat"), 1)
        assert bytes(interruption.value.stdout) == b"begun\n"
        assert bytes(session.exec(Command(b"echo on"), WAIT_SECONDS).stdout) == b"on\n"

    def test_a_shell_can_be_started_again(self, session: Session, transport: Transport, loaded: dict[str, Any]) -> None:
        session.stop(WAIT_SECONDS)
        assert not session.alive
        again = Session(start_supervisor(transport, loaded.get("shell"), WAIT_SECONDS), transport, MAX_OUTPUT_BYTES)
        assert again.exec(Command(b"exit 4"), WAIT_SECONDS).exit_code == 4
        again.stop(WAIT_SECONDS)


MESSAGE = bytes(range(256)) * 256


class StreamConformance:
    """Checks :meth:`connmgr.plugin.Transport.open_tcp`; inherit it beside :class:`ConnectionConformance`.

    The remote host must reach a server of this machine: by default on its loopback address, otherwise on ``address``.
    """

    @pytest.fixture
    def address(self) -> str:
        """This machine's address as the remote host sees it."""
        return "127.0.0.1"

    @pytest.fixture
    def echo(self, address: str) -> Iterator[int]:
        """The port of a server that echoes what one client sends, and then closes."""
        with socket.create_server((address, 0)) as server:
            server.settimeout(WAIT_SECONDS)
            thread = threading.Thread(target=_echo, args=(server,), daemon=True)
            thread.start()
            yield server.getsockname()[1]
        thread.join(WAIT_SECONDS)

    def test_a_stream_carries_bytes_both_ways(self, transport: Transport, address: str, echo: int) -> None:
        _assert_carries(transport.open_tcp(address, echo, timeout=WAIT_SECONDS))

    def test_what_is_written_can_end_before_what_is_read(self, transport: Transport, address: str, echo: int) -> None:
        _assert_ends_one_way(transport.open_tcp(address, echo, timeout=WAIT_SECONDS))

    def test_a_silent_stream_times_out(self, transport: Transport, address: str, echo: int) -> None:
        _assert_times_out(transport.open_tcp(address, echo, timeout=WAIT_SECONDS))

    def test_a_closed_port_is_an_error_of_its_own(self, transport: Transport, address: str) -> None:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(OperationError):
            transport.open_tcp(address, port, timeout=WAIT_SECONDS)


class UnixStreamConformance:
    """Checks :meth:`connmgr.plugin.Transport.open_unix`; inherit it beside :class:`ConnectionConformance`.

    The remote host must see this machine's files: by default those in the directory for temporary ones, otherwise those
    in ``directory``, whose path must be short.
    """

    @pytest.fixture
    def directory(self) -> Iterator[Path]:
        """A directory of this machine, at the same path of the remote host."""
        # A socket's path has 107 bytes at most (unix(7)), and tmp_path is long.
        with tempfile.TemporaryDirectory(prefix="cm-") as directory:
            # The remote host's user may be another one than this process's.
            Path(directory).chmod(0o755)
            yield Path(directory)

    @pytest.fixture
    def echo_path(self, directory: Path) -> Iterator[str]:
        """The Unix socket of a server that echoes what one client sends, and then closes."""
        path = str(directory / "echo")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            Path(path).chmod(0o666)
            server.listen()
            server.settimeout(WAIT_SECONDS)
            thread = threading.Thread(target=_echo, args=(server,), daemon=True)
            thread.start()
            yield path
        thread.join(WAIT_SECONDS)

    def test_a_unix_socket_carries_bytes_both_ways(self, transport: Transport, echo_path: str) -> None:
        _assert_carries(transport.open_unix(echo_path, timeout=WAIT_SECONDS))

    def test_what_is_written_to_a_unix_socket_can_end_first(self, transport: Transport, echo_path: str) -> None:
        _assert_ends_one_way(transport.open_unix(echo_path, timeout=WAIT_SECONDS))

    def test_a_silent_unix_socket_times_out(self, transport: Transport, echo_path: str) -> None:
        _assert_times_out(transport.open_unix(echo_path, timeout=WAIT_SECONDS))

    def test_a_path_without_a_socket_is_an_error_of_its_own(self, transport: Transport, directory: Path) -> None:
        with pytest.raises(OperationError):
            transport.open_unix(str(directory / "nobody"), timeout=WAIT_SECONDS)


def _assert_carries(stream: ByteStream) -> None:
    """Fail unless ``stream``, to a server that echoes, carries every byte both ways; and close it."""
    stream.settimeout(WAIT_SECONDS)
    received = bytearray()
    stream.sendall(MESSAGE)
    while len(received) < len(MESSAGE):
        chunk = stream.recv(1 << 16)
        assert chunk, f"the stream ended after {len(received)} of {len(MESSAGE)} bytes"
        received += chunk
    stream.close()
    assert bytes(received) == MESSAGE


def _assert_ends_one_way(stream: ByteStream) -> None:
    """Fail unless the end of what is written to ``stream`` leaves it readable; and close it."""
    stream.settimeout(WAIT_SECONDS)
    stream.sendall(b"last words")
    stream.shutdown(socket.SHUT_WR)
    received = b""
    while chunk := stream.recv(100):
        received += chunk
    stream.close()
    assert received == b"last words"


def _assert_times_out(stream: ByteStream) -> None:
    """Fail unless reading from ``stream``, on which nothing comes, times out; and close it."""
    stream.settimeout(0.05)
    with pytest.raises(TimeoutError):
        stream.recv(1)
    stream.close()


def _echo(server: socket.socket) -> None:
    try:
        client, _ = server.accept()
    except OSError:  # no test connected
        return
    with client:
        client.settimeout(WAIT_SECONDS)
        while chunk := client.recv(1 << 16):
            client.sendall(chunk)


Connect = Callable[[], Transport]


class _Conformance(SchemaConformance, ChannelConformance, SessionConformance):
    @pytest.fixture
    def via(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> Iterator[Transport | None]:
        """The transport for the reference in ``data``: this machine, unless a subclass opens another."""
        if kind.via is None or data.get(kind.via) is None:
            yield None
            return
        transport = local()
        yield transport
        transport.close()

    @pytest.fixture
    def connected(
        self, kind: AnyConnectionType, data: Mapping[str, Any], via: Transport | None, loaded: dict[str, Any]
    ) -> Connect:
        """A function that opens another link."""
        return lambda: connect(kind, data, via)

    @pytest.fixture
    def transport(self, connected: Connect) -> Iterator[Transport]:
        """The link that most tests share."""
        transport = connected()
        yield transport
        transport.close()


class ConnectionConformance(_Conformance):
    """Checks everything that the engine expects of a connection type with a transport.

    Fixtures of the subclass: ``kind`` and ``data``; ``via`` if the connection does not run over this machine.
    """

    def test_closing_the_transport_wakes_its_channels(self, transport: Transport) -> None:
        channel = transport.open_channel(script("sleep 120"), timeout=WAIT_SECONDS)
        transport.close()
        with pytest.raises((EOFError, OSError)):
            channel.recv(WAIT_SECONDS)
        channel.close()

    def test_a_closed_transport_opens_nothing(self, transport: Transport) -> None:
        transport.close()
        transport.close()
        with pytest.raises(OperationError):
            transport.open_channel(script("exit"), timeout=WAIT_SECONDS)

    def test_closed_transports_leave_nothing_behind(self, connected: Connect) -> None:
        def use() -> None:
            transport = connected()
            transport.open_channel(script("sleep 120"), timeout=WAIT_SECONDS)
            transport.close()

        assert_leaves_nothing(use)


class WrapperConformance(_Conformance):
    """Checks everything that the engine expects of a wrapper.

    Fixtures of the subclass: ``kind`` and ``data``; ``via`` if it does not run over this machine.
    """

    PROMPT = "connmgr-test-prompt:"

    def test_it_runs_over_a_connection_that_must_be_named(self, kind: AnyConnectionType) -> None:
        assert kind.via is not None, "a wrapper says in `via` which field names the connection that it runs in"
        field = kind.schema().fields[kind.via]
        assert isinstance(field, Reference)
        assert field.required

    def test_no_secret_is_in_the_argv(self, kind: Wrapper, loaded: dict[str, Any]) -> None:
        for data in (loaded, kind.schema().load(kind.example)):
            words = kind.wrap(["printf", "%s", "a b"], data, self.PROMPT, pty=False)
            assert all(isinstance(word, str) for word in words)
            assert not [secret for secret in secrets_of(kind, data) if any(secret in word for word in words)]

    def test_the_argv_that_it_is_given_is_not_changed(self, kind: Wrapper, loaded: dict[str, Any]) -> None:
        argv = ["printf", "%s", "a b"]
        kind.wrap(argv, loaded, self.PROMPT, pty=False)
        assert argv == ["printf", "%s", "a b"]
        assert kind.wrap(tuple(argv), loaded, self.PROMPT, pty=False) == kind.wrap(argv, loaded, self.PROMPT, pty=False)

    def test_it_runs_the_argv_and_nothing_else(self, transport: Transport) -> None:
        assert run(transport, ["printf", "%s", "only this"]).stdout == b"only this"
