"""Connection types that each break the contract in one way, with the test of the public suite that must notice.

pytest does not collect this file by itself; ``test_suite.py`` runs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import marshmallow
import pytest

from connmgr.errors import OperationError, ShellStartFailed
from connmgr.plugin import (
    AnyConnectionType,
    Channel,
    ConnectionType,
    Integer,
    List,
    Nested,
    Pty,
    Reference,
    Schema,
    Secret,
    Text,
    Transport,
    Wrapper,
)
from connmgr.testing import ConnectionConformance, WrapperConformance, conformance, link, local

FAULT_SECONDS = 1.0
"""Wait after which silence counts as a fault."""

HOST = "f0ec68aa-63f5-405c-b178-9a4454556d6b"


def _later(function: Callable[[], None]) -> None:
    timer = threading.Timer(4, function)
    timer.daemon = True
    timer.start()


class Delegate(Channel):
    """A channel that delegates to another one; faults override its methods."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.merged = inner.merged

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        return self.inner.recv(timeout)

    def sendall(self, data: bytes, timeout: float) -> None:
        self.inner.sendall(data, timeout)

    def shutdown_write(self) -> None:
        self.inner.shutdown_write()

    def fileno(self) -> int | None:
        return self.inner.fileno()

    def expect_bulk(self) -> None:
        self.inner.expect_bulk()

    def resize(self, columns: int, rows: int) -> None:
        self.inner.resize(columns, rows)

    def exit_status(self, timeout: float) -> int:
        return self.inner.exit_status(timeout)

    def close(self) -> None:
        self.inner.close()


class Link(Transport):
    """A local transport whose channels have the fault."""

    def __init__(self, fault: type[Delegate]) -> None:
        self.inner = local()
        self.fault = fault

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return self.fault(self.inner.open_channel(argv, pty=pty, timeout=timeout))

    def close(self) -> None:
        self.inner.close()


class SwapsStreams(Delegate):
    caught_by = "test_both_streams_and_the_status_arrive"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        return self.inner.recv(timeout)[::-1]


class ReadsText(Delegate):
    caught_by = "test_every_byte_passes_both_ways"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = self.inner.recv(timeout)
        return out.decode(errors="replace").encode(), err


class CutsOutput(Delegate):
    caught_by = "test_large_output_arrives_whole_although_the_other_stream_is_full_too"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = self.inner.recv(timeout)
        return out[:4096], err


class CutsInput(Delegate):
    caught_by = "test_large_input_arrives_whole"

    def sendall(self, data: bytes, timeout: float) -> None:
        self.inner.sendall(data[: 1 << 16], timeout)


class WritesMoreThanItTells(Delegate):
    caught_by = "test_input_that_does_not_wait_arrives_whole_or_is_refused"

    def send_now(self, data: bytes) -> int:
        return (self.inner.send_now(data) + 1) // 2


class WritesNothingWithoutAWord(Delegate):
    caught_by = "test_input_that_must_not_wait_is_refused_in_the_end_where_nobody_reads_it"

    def send_now(self, data: bytes) -> int:
        try:
            return self.inner.send_now(data)
        except TimeoutError:
            return 0


class IgnoresTheEndOfInput(Delegate):
    caught_by = "test_shutdown_write_ends_the_input"

    def shutdown_write(self) -> None:
        pass


class ReadsOrWrites(Delegate):
    caught_by = "test_output_is_read_while_input_waits"

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.lock = threading.Lock()

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        with self.lock:
            return self.inner.recv(timeout)

    def sendall(self, data: bytes, timeout: float) -> None:
        with self.lock:
            self.inner.sendall(data, timeout)


class AlwaysHasNews(Delegate):
    caught_by = "test_a_descriptor_tells_of_news_and_of_nothing_else"

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.at_end, empty = os.pipe()
        os.close(empty)

    def fileno(self) -> int:
        return self.at_end

    def close(self) -> None:
        if self.at_end >= 0:
            os.close(self.at_end)
            self.at_end = -1
        super().close()


class SwapsColumnsAndRows(Delegate):
    caught_by = "test_a_terminal_is_told_its_size"

    def resize(self, columns: int, rows: int) -> None:
        self.inner.resize(rows, columns)


class ResizesWhatIsNoTerminal(Delegate):
    caught_by = "test_a_process_without_a_terminal_has_no_size"

    def resize(self, columns: int, rows: int) -> None:
        pass


class CutsStatus(Delegate):
    caught_by = "test_an_exit_status_is_returned"

    def exit_status(self, timeout: float) -> int:
        return self.inner.exit_status(timeout) & 1


class NegatesSignals(Delegate):
    caught_by = "test_a_signal_is_returned_as_128_and_its_number"

    def exit_status(self, timeout: float) -> int:
        status = self.inner.exit_status(timeout)
        return 128 - status if status > 128 else status


class InventsAStatus(Delegate):
    caught_by = "test_the_exit_status_times_out_while_the_process_runs"

    def exit_status(self, timeout: float) -> int:
        try:
            return self.inner.exit_status(timeout)
        except TimeoutError:
            return 0


class TellsAnEndTooEarly(Delegate):
    caught_by = "test_an_end_is_told_once_if_at_all"

    def when_ended(self, call: Callable[[], object]) -> bool:
        call()
        return True


class TimesOutWithAnError(Delegate):
    caught_by = "test_recv_returns_nothing_when_its_time_is_over"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = self.inner.recv(timeout)
        if not (out or err):
            raise TimeoutError
        return out, err


class WaitsForTheEnd(Delegate):
    caught_by = "test_recv_returns_as_soon_as_something_came"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        parts = [self.inner.recv(timeout)]
        while parts[-1] != (b"", b""):
            parts.append(self.inner.recv(timeout))
        return b"".join(out for out, _ in parts), b"".join(err for _, err in parts)


class WaitsForOutput(Delegate):
    caught_by = "test_recv_returns_errors_as_soon_as_they_came"

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = self.inner.recv(timeout)
        while err and not out:
            more, errors = self.inner.recv(timeout)
            out, err = out + more, err + errors
        return out, err


class TellsTheEndOnce(Delegate):
    caught_by = "test_the_end_of_both_streams_is_told_each_time"
    told = False

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self.told:
            return b"", b""
        try:
            return self.inner.recv(timeout)
        except EOFError:
            self.told = True
            raise


class TakesWithoutEnd(Delegate):
    caught_by = "test_writing_times_out_when_the_process_does_not_read"

    def sendall(self, data: bytes, timeout: float) -> None:
        pass


class SwallowsBrokenPipes(Delegate):
    caught_by = "test_writing_to_a_process_that_has_ended_is_an_error"

    def sendall(self, data: bytes, timeout: float) -> None:
        try:
            self.inner.sendall(data, timeout)
        except BrokenPipeError:
            return


class ClosesLate(Delegate):
    caught_by = "test_close_wakes_a_blocked_call_at_once"

    def close(self) -> None:
        _later(self.inner.close)


class ClosesOnce(Delegate):
    caught_by = "test_close_may_be_repeated"
    closed = False

    def close(self) -> None:
        if self.closed:
            raise OSError("already closed")
        self.closed = True
        self.inner.close()


class LeavesTheProcess(Delegate):
    caught_by = "test_close_ends_a_process_that_reads"

    def close(self) -> None:
        _later(self.inner.close)


class DeniesTheTerminal(Delegate):
    caught_by = "test_a_terminal_is_given_where_one_is_asked_for"

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.merged = False


class KeepsADescriptor(Delegate):
    caught_by = "test_closed_channels_leave_nothing_behind"

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        os.open(os.devnull, os.O_RDONLY)


class KeepsAThread(Delegate):
    caught_by = "test_closed_channels_leave_nothing_behind"

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class Unquoted(Link):
    caught_by = "test_argv_arrives_word_by_word"

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return self.inner.open_channel(["/bin/sh", "-c", " ".join(argv)], pty=pty, timeout=timeout)


class OneAtATime(Link):
    caught_by = "test_channels_do_not_wait_for_each_other"
    last: Channel | None = None

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        if self.last is not None:
            self.last.close()
        self.last = super().open_channel(argv, pty=pty, timeout=timeout)
        return self.last


class BelongsToAThread(Link):
    caught_by = "test_threads_share_a_transport"

    def __init__(self, fault: type[Delegate]) -> None:
        super().__init__(fault)
        self.owner = threading.get_ident()

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        if threading.get_ident() != self.owner:
            raise ShellStartFailed("Not from this thread.")
        return super().open_channel(argv, pty=pty, timeout=timeout)


class KeepsADescriptorOfEachLink(Link):
    caught_by = "test_closed_transports_leave_nothing_behind"

    def __init__(self, fault: type[Delegate]) -> None:
        super().__init__(fault)
        os.open(os.devnull, os.O_RDONLY)


class LeavesChannels(Link):
    caught_by = "test_closing_the_transport_wakes_its_channels"

    def close(self) -> None:
        _later(self.inner.close)


class OpensWhenClosed(Link):
    caught_by = "test_a_closed_transport_opens_nothing"

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        try:
            return super().open_channel(argv, pty=pty, timeout=timeout)
        except OperationError:
            return local().open_channel(argv, pty=pty, timeout=timeout)


class Sound(ConnectionType):
    """A type whose only faults are those of its transport."""

    name = "sound"
    description = "A type for a test."
    schema: ClassVar[type[Schema]] = Schema

    def __init__(self, fault: type[Delegate] | type[Link] = Delegate) -> None:
        self.fault = fault

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        return self.fault(Delegate) if issubclass(self.fault, Link) else Link(self.fault)


class NamedBadly(Sound):
    caught_by = "test_the_name_is_a_word"
    name = "two words"


class DescribedBadly(Sound):
    caught_by = "test_the_description_is_a_sentence"
    description = "a type"


class OfNoCategory(Sound):
    caught_by = "test_the_usage_category_is_one_of_the_four"
    usage_category = "other"


class _Silent(Schema):
    port = Integer()


class WithoutDescriptions(Sound):
    caught_by = "test_every_field_is_described"
    schema = _Silent


class _SilentWithin(Schema):
    hops = List(Nested(_Silent), metadata={"description": "The ways."})


class WithoutDescriptionsWithin(Sound):
    caught_by = "test_every_field_is_described"
    schema = _SilentWithin


class WithABadExample(Sound):
    caught_by = "test_the_example_is_valid"
    schema = _Silent
    example: ClassVar[Mapping[str, Any]] = {"port": "22"}


class _Lax(Schema):
    class Meta:
        unknown = marshmallow.EXCLUDE


class Lax(Sound):
    caught_by = "test_an_unknown_field_is_refused"
    schema = _Lax


class _Typed(Schema):
    type = Text()


class TakesType(Sound):
    caught_by = "test_no_field_takes_the_name_of_the_type_field"
    schema = _Typed


class _Referring(Schema):
    host = Reference(metadata={"description": "Where."})


class WithoutVia(Sound):
    caught_by = "test_via_names_a_reference"
    schema = _Referring


class _Unsteady(Schema):
    @marshmallow.post_load
    def count(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"count": 1, **data}


class Unsteady(Sound):
    caught_by = "test_loading_what_was_loaded_changes_nothing"
    schema = _Unsteady


class _Wrapping(Schema):
    host = Reference(required=True, metadata={"description": "Where."})
    password = Secret(metadata={"description": "Its password."})


class SoundWrapper(Wrapper):
    """A wrapper without faults."""

    name = "wrapper"
    description = "A wrapper for a test."
    schema: ClassVar[type[Schema]] = _Wrapping
    example: ClassVar[Mapping[str, Any]] = {"host": HOST, "password": "canary"}
    via = "host"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return ["env", *argv]


class TellsThePassword(SoundWrapper):
    caught_by = "test_no_secret_is_in_the_argv"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return ["env", f"PASSWORD={data.get('password')}", *argv]


class _WrappingWithKeys(Schema):
    host = Reference(required=True, metadata={"description": "Where."})
    keys = List(Secret(), metadata={"description": "Its passwords."})


class TellsAPasswordOfAList(SoundWrapper):
    caught_by = "test_no_secret_is_in_the_argv"
    schema = _WrappingWithKeys
    example: ClassVar[Mapping[str, Any]] = {"host": HOST, "keys": ["canary"]}

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return ["env", f"KEYS={data['keys']}", *argv]


class ChangesTheArgv(SoundWrapper):
    caught_by = "test_the_argv_that_it_is_given_is_not_changed"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        words = argv if isinstance(argv, list) else list(argv)
        words.insert(0, "env")
        return words


class Talks(SoundWrapper):
    caught_by = "test_it_runs_the_argv_and_nothing_else"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return ["/bin/sh", "-c", 'echo welcome; exec "$@"', "sh", *argv]


class _Hostless(Schema):
    host = Reference(metadata={"description": "Where."})


class RunsNowhere(SoundWrapper):
    caught_by = "test_it_runs_over_a_connection_that_must_be_named"
    schema = _Hostless
    example: ClassVar[Mapping[str, Any]] = {"host": HOST}


def _below(*parents: type[Any]) -> list[type[Any]]:
    found = [kind for parent in parents for kind in parent.__subclasses__()]
    return [kind for kind in found if hasattr(kind, "caught_by")] + (_below(*found) if found else [])


def _suite(fault: type[Any]) -> type[Any]:
    """Return the test class of a plugin that has the fault."""

    @pytest.fixture
    def kind(self: object) -> AnyConnectionType:
        found: AnyConnectionType = fault() if issubclass(fault, Sound | SoundWrapper) else Sound(fault)
        return found

    @pytest.fixture(autouse=True)
    def impatient(self: object, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (conformance, link):
            monkeypatch.setattr(module, "WAIT_SECONDS", FAULT_SECONDS)

    base = WrapperConformance if issubclass(fault, SoundWrapper) else ConnectionConformance
    fixtures = {"impatient": impatient} if hasattr(fault, "caught_by") else {}
    return type(f"Test{fault.__name__}", (base,), {"kind": kind, **fixtures})


_FAULTY = _below(Delegate, Link, Sound, SoundWrapper)
FAULTS = {fault.__name__: fault.caught_by for fault in _FAULTY}
globals().update({f"Test{fault.__name__}": _suite(fault) for fault in (*_FAULTY, Sound, SoundWrapper)})
