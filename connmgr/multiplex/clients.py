"""One program at a control socket: its packets, the descriptors that it passes, and what it asks for with them."""

from __future__ import annotations

import array
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from connmgr.contract.multiplex import DYNAMIC, LOCAL, REMOTE
from connmgr.errors import ConnmgrError, InternalError
from connmgr.multiplex import packets
from connmgr.multiplex.packets import (
    MAX_PACKET_BYTES,
    AliveCheck,
    CloseForward,
    ForwardPacket,
    Malformed,
    MultiplexRequest,
    NewSession,
    OpenForward,
    StdioForward,
    StopListening,
    Terminate,
    Unsupported,
    length_of,
    packet,
    read_hello,
    read_request,
)
from connmgr.multiplex.passengers import Passenger, Served, Shared
from connmgr.printable import visible
from connmgr.streams.endpoints import Outbox

REQUEST_SECONDS = 10.0
"""Time for a client to say what it wants, and to pass its descriptors; and to read the last answer."""

RECEIVE_BYTES = 64 * 1024
PACKETS_AT_ONCE = 64
"""Most packets that are handled of what was received at once. ssh awaits the answer to each; thousands of small ones
would keep everybody's streams waiting."""

MAX_DESCRIPTORS = 3
MAX_ANSWERS_BYTES = 64 * 1024
"""Most bytes of answers that a client leaves unread, before it is considered gone."""

_DESCRIPTOR_BYTES = array.array("i").itemsize
_DENIED = {"scope_denied", "policy_denied", "approval_required", "approval_denied", "quota_exceeded"}
_KINDS = {packets.LOCAL: LOCAL, packets.REMOTE: REMOTE, packets.DYNAMIC: DYNAMIC}


class MultiplexClient:
    """A program that has ``connected`` to the control socket ``at``. Belongs to the thread of the loop.

    Forwards that it opens before a session end with it, and others with the control socket.
    """

    def __init__(self, host: Shared, connected: socket.socket, at: Served) -> None:
        connected.setblocking(False)
        self._host, self._loop, self._socket, self.at = host, host.loop, connected, at
        self._outbox = Outbox(connected.send)
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._greeted = self.closed = self._is_finishing = False
        self._is_busy = False
        """Whether a request is being carried out; the next one waits."""

        self._awaiting: MultiplexRequest | None = None
        """A request whose descriptors have not come."""

        self.passenger: Passenger | None = None
        self.forwards: list[Mapping[str, Any]] = []
        """The forwards that it has asked for."""

        self._events = 0
        self._timer = self._loop.after(REQUEST_SECONDS, self.close)
        self._send(packet(packets.HELLO, packets.VERSION))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is done for it."""
        return self.passenger is None and not self._is_busy

    def answer(self, *members: int | bytes) -> None:
        """Send a packet of these members."""
        self._send(packet(*members))

    def refuse(self, number: int, why: str, kind: int = packets.FAILURE) -> None:
        """Refuse the request with this ``number``."""
        self.answer(kind, number, visible(why).encode())

    def finish(self) -> None:
        """Close once all answers are sent."""
        if not self._outbox.size:
            self.close()
        elif not (self.closed or self._is_finishing):
            self._is_finishing = True
            self._allow_time()

    def close(self) -> None:
        """Close, with its descriptors that nobody has taken. Calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._outbox.drop()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._host.left(self)
        if self.passenger is not None:
            self.passenger.leave()
        for forward in self.forwards:
            # `ssh -O forward` leaves at once, and its forward stays until `-O cancel`, as with OpenSSH's master. A
            # forward of `ssh -L`, which has a session, ends with that.
            if self.passenger is None:
                self._host.keep(self.at, forward, lasts=True)
            elif not self._host.is_kept(self.at, forward):
                self._loop.work(partial(self._cancel, forward))

    def _allow_time(self) -> None:
        """Give the client time for the next thing that it has to say, or for its last answer."""
        self._timer.cancel()
        self._timer = self._loop.after(REQUEST_SECONDS, self.close)

    def _send(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            self._outbox.put(data)
        except OSError:
            self.close()
            return
        if self._outbox.size > MAX_ANSWERS_BYTES:
            self.close()
        else:
            self._watch()

    def _watch(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox.size else 0)
        if not self.closed and events != self._events:
            self._events = events
            self._loop.watch(self._socket.fileno(), events, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            try:
                self._outbox.flush()
            except OSError:
                self.close()
                return
            if self._is_finishing and not self._outbox.size:
                self.close()
            self._watch()
        if events & selectors.EVENT_READ and not self.closed:
            self._receive()

    def _receive(self) -> None:
        # One place more than any request needs, so that too many are seen.
        room = socket.CMSG_SPACE((MAX_DESCRIPTORS + 1) * _DESCRIPTOR_BYTES)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(RECEIVE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary, flags = b"", [], 0
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                passed = array.array("i")
                passed.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
                # Kept before anything is refused, because whatever was passed is open in this process: close() ends it.
                self._descriptors += passed
        if not data:
            self.close()
            return
        if self._is_finishing:
            return
        self._received += data
        self._handle_on(too_many=bool(flags & socket.MSG_CTRUNC) or len(self._descriptors) > MAX_DESCRIPTORS)

    def _handle_on(self, *, too_many: bool = False) -> None:
        """Handle all packets that have come whole; a client that breaks the protocol is told so, and closed."""
        try:
            self._handle_all(too_many=too_many)
        except Malformed as fault:
            self.refuse(0, str(fault))
            self.finish()

    def _handle_all(self, *, too_many: bool) -> None:
        if too_many:
            raise Malformed("The client passes more descriptors than a session has.")
        handled = 0
        while not (self.closed or self._is_busy):
            if self._awaiting is not None:
                if not self._take_descriptors(self._awaiting):
                    return
                continue
            length = length_of(self._received)
            end = packets.LENGTH_BYTES + (length or 0)
            if length is None or len(self._received) < end:
                return
            content = bytes(self._received[packets.LENGTH_BYTES : end])
            del self._received[:end]
            if self.passenger is None:
                self._allow_time()
            self._handle(content)
            handled += 1
            if handled > PACKETS_AT_ONCE:
                break
        if handled > PACKETS_AT_ONCE or len(self._received) > MAX_PACKET_BYTES:
            raise Malformed("The client sends on without waiting for an answer.")

    def _handle(self, content: bytes) -> None:
        if not self._greeted:
            read_hello(content)
            self._greeted = True
            return
        request = read_request(content)
        if request.descriptors:
            self._awaiting = request
        elif self._descriptors:
            raise Malformed("The client passes descriptors that nobody has asked for.")
        elif isinstance(request, AliveCheck):
            self.answer(packets.ALIVE, request.number, os.getpid())
        elif isinstance(request, OpenForward | CloseForward):
            self._forward(request)
        elif isinstance(request, StopListening | Terminate):
            self._renew(request)
        else:
            assert isinstance(request, Unsupported), "all others are handled"  # noqa: S101
            self.refuse(request.number, request.why)

    def _take_descriptors(self, request: MultiplexRequest) -> bool:
        """Begin ``request`` once its descriptors have come, each with one byte; return whether they have."""
        count = request.descriptors
        if len(self._received) < count:
            return False
        # OpenSSH sends one NUL byte with each descriptor (monitor_fdpass.c). These bytes belong to no packet.
        if len(self._descriptors) != count or any(self._received[:count]):
            raise Malformed(f"The client sends {count} bytes, but not a descriptor with each.")
        del self._received[:count]
        self._awaiting = None
        if self.passenger is not None:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()
            self.refuse(request.number, "Multiple sessions not supported")
            return True
        assert isinstance(request, NewSession | StdioForward), "others have no descriptors"  # noqa: S101
        descriptors, self._descriptors = self._descriptors, []
        why_busy = self._host.why_busy(self.at)
        self._timer.cancel()
        self.passenger = Passenger(self._host, self, request, descriptors)
        self.passenger.begin(why_busy)
        return True

    # Requests that others carry out.

    def _forward(self, request: OpenForward | CloseForward) -> None:
        fault = _fault_of(request.forward)
        if fault is not None:
            self.refuse(request.number, fault)
            return
        forward = _members(self.at.connection, request.forward)
        if isinstance(request, OpenForward):
            self._carry_out("/multiplex/forward", forward, request, partial(self._forwarded, request, forward))
        else:
            self._carry_out("/multiplex/cancel", forward, request, partial(self._cancelled, request, forward))

    def _forwarded(self, request: OpenForward, forward: Mapping[str, Any], answered: Mapping[str, Any]) -> None:
        if self.closed:
            # It has left while the forward was opened, and close() did not find it among its forwards.
            if not self._host.is_kept(self.at, forward):
                self._loop.work(partial(self._cancel, forward))
            return
        self.forwards.append(forward)
        if request.forward.kind == packets.REMOTE and not request.forward.listen_port:
            self.answer(packets.REMOTE_PORT, request.number, answered["port"])
        else:
            self.answer(packets.OK, request.number)

    def _cancelled(self, request: CloseForward, forward: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        self._host.keep(self.at, forward, lasts=False)
        self.answer(packets.OK, request.number)

    def _renew(self, request: StopListening | Terminate) -> None:
        """Handle the end of the master, as which a client sees the link: the next session gets a new one."""

        def renewed(_: Mapping[str, Any]) -> None:
            self.answer(packets.OK, request.number)
            if isinstance(request, Terminate):
                for passenger in self._host.passengers_of(self.at):
                    passenger.end()

        self._carry_out("/multiplex/renew", {"connection": self.at.connection}, request, renewed)

    def _carry_out(
        self,
        path: str,
        members: Mapping[str, Any],
        request: MultiplexRequest,
        done: Callable[[Mapping[str, Any]], None],
    ) -> None:
        if self.passenger is None and (why := self._host.why_busy(self.at)) is not None:
            self.refuse(request.number, why)
            return
        self._is_busy = True
        self._timer.cancel()
        self._loop.work(partial(self._ask, path, members, request, done))

    def _ask(
        self,
        path: str,
        members: Mapping[str, Any],
        request: MultiplexRequest,
        done: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Send a request through the pipeline, in a thread that may wait."""
        try:
            answered = self._host.pipeline.post(self.at.sender, path, members)
        except ConnmgrError as error:
            self._loop.call(partial(self._refused, request, error))
        except BaseException:
            self._loop.call(
                partial(
                    self._refused, request, InternalError("An internal error occurred; the daemon's log says more.")
                )
            )
            raise
        else:
            self._loop.call(partial(self._answered, answered, done))

    def _answered(self, answered: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> None:
        done(answered)
        self._go_on()

    def _refused(self, request: MultiplexRequest, why: ConnmgrError) -> None:
        self.refuse(request.number, why.message, packets.PERMISSION_DENIED if why.code in _DENIED else packets.FAILURE)
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        if not self.closed:
            self._allow_time()
            self._handle_on()

    def _cancel(self, forward: Mapping[str, Any]) -> None:
        """End a forward with the client that has opened it, in a thread that may wait."""
        try:
            self._host.pipeline.post(self.at.sender, "/multiplex/cancel", forward)
        except ConnmgrError:
            # It has ended before, with its socket or token, or by another client's wish.
            return


def _fault_of(forward: ForwardPacket) -> str | None:
    """Return why a forward cannot be opened, or None."""
    if forward.kind not in _KINDS:
        return "Invalid forwarding request"
    if forward.kind == packets.DYNAMIC and forward.listen_port == packets.UNIX_PORT:
        return "A SOCKS server listens on a TCP port, not at a Unix socket."
    ends = ((forward.listen_host, forward.listen_port), (forward.connect_host, forward.connect_port))
    for path in (host for host, port in ends if port == packets.UNIX_PORT):
        # The protocol does not tell the directory in which the client was called.
        if not path.startswith(b"/"):
            return f"A Unix socket is named by its absolute path, not by {path.decode(errors='replace')}."
        if "\ufffd" in path.decode(errors="replace"):
            return "The path of a Unix socket is not UTF-8."
    if forward.kind == packets.LOCAL and not (forward.connect_host and forward.connect_port):
        return "The forward lacks the host or the port that it leads to."
    return None


def _members(connection: str, forward: ForwardPacket) -> dict[str, Any]:
    """Return the request for ``/multiplex/forward`` or ``/multiplex/cancel`` that means ``forward``."""
    host = forward.listen_host.decode(errors="replace")
    members: dict[str, Any] = {"connection": connection, "kind": _KINDS[forward.kind]}
    if forward.listen_port == packets.UNIX_PORT:
        members["socket"] = host
    else:
        # As ssh -L with the bind address "*": all addresses, of IPv4.
        members["host"] = "0.0.0.0" if host == "*" else host or "localhost"  # noqa: S104 - somebody has asked for that
        members["port"] = forward.listen_port
    # With -R and a port alone, ssh names the host "socks" and the port 0 (readconf.c of OpenSSH).
    if forward.connect_port == packets.UNIX_PORT:
        members["toSocket"] = forward.connect_host.decode(errors="replace")
    elif forward.kind != packets.DYNAMIC and forward.connect_port:
        members["to"] = {"host": forward.connect_host.decode(errors="replace"), "port": forward.connect_port}
    return members
