"""An SSH connection: paramiko's transport, but faster to open, without wake-ups while idle, and sure to close.

Its sending half keeps the order of messages, also during a key exchange, and decides which thread waits. Four kinds of
callers send, and differ in what they may wait for:

- :meth:`SendingTransport.post`: a thread of a request, which may wait until its deadline;
- :meth:`SendingTransport.post_now`: a thread that serves many channels, and comes again when there is room;
- :meth:`SendingTransport.post_soon`: the same for small messages that must not be lost, such as a larger window;
- :meth:`SendingTransport.post_later`: the reading thread. If it waited for a peer that waits for us to read, neither
  would ever continue.

``clear_to_send`` is paramiko's event: it is cleared during a key exchange, in which only that may be sent
(RFC 4253, section 7.1).
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import paramiko
from paramiko import common
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from connmgr.errors import TransportUnsupported
from connmgr.plugin import Deadline
from connmgr_ssh.agent import ForwardedAgent
from connmgr_ssh.channels import PACKET_BYTES, STDERR, STDOUT, WINDOW_BYTES, SshChannel, TcpStream
from connmgr_ssh.forwarding import GlobalRequests, RemotePorts
from connmgr_ssh.keepalives import KeepAlives
from connmgr_ssh.keys import CERTIFICATE, CIPHERS, KEY_EXCHANGES, MACS, disagreement, ordered
from connmgr_ssh.packets import MAX_SILENCES, Packets, Payload, Wire, packed
from connmgr_ssh.reading import SharedReader

MAX_POSTPONED = 1024
"""Most messages that wait for the end of a key exchange."""


class SendingTransport(paramiko.Transport):
    """paramiko's transport over a :class:`Wire`, on which several threads send whole messages."""

    if TYPE_CHECKING:
        active: bool

    def __init__(self, wire: Wire, name: str) -> None:
        super().__init__(cast(socket.socket, wire), WINDOW_BYTES, PACKET_BYTES, packetizer_class=Packets)
        self.name = name
        self.wire = wire
        self._packets = cast(Packets, self.packetizer)
        self._postponed: list[tuple[Message, SshChannel | None, bool]] = []
        self._soon: deque[tuple[Message, SshChannel]] = deque()
        self._one_waits = threading.Lock()
        self._held_up: set[SshChannel] = set()

    def post(self, message: Message, deadline: Deadline, of: SshChannel | None = None, *, last: bool = False) -> None:
        """Send for the channel ``of``, perhaps its ``last`` message; raise OSError or EOFError if it cannot."""
        self.post_all(((message.asbytes(),),), deadline, of, last=last)

    def post_all(
        self, payloads: Iterable[Payload], deadline: Deadline, of: SshChannel | None = None, *, last: bool = False
    ) -> None:
        """Send several messages like :meth:`post`."""
        try:
            while True:
                if not self.clear_to_send.is_set() and not self.clear_to_send.wait(deadline.left()):
                    raise TimeoutError("The key exchange took too long.")
                with self.clear_to_send_lock:
                    if not self.active:
                        raise EOFError
                    if self.clear_to_send.is_set():
                        if not self._send_in_order(payloads, of, last):
                            raise BrokenPipeError("The channel is closed.")
                        return
        finally:
            self._send_soon()

    def post_now(self, payloads: Callable[[], Iterable[Payload]], of: SshChannel) -> bool:
        """Send several messages without waiting, or return False; the descriptor of ``of`` tells when to try again.

        If the peer accepts only a part at once, a thread sends the rest.
        :raises EOFError | OSError: the link or the channel is gone.
        """
        if not self._posted_now(payloads, of):
            # Tried again after adding the channel: the sending thread may have finished and read _held_up between the
            # first attempt and this line, and nobody would wake the channel.
            self._held_up.add(of)
            if not self._posted_now(payloads, of):
                return False
            self._held_up.discard(of)
        return True

    def _posted_now(self, payloads: Callable[[], Iterable[Payload]], of: SshChannel) -> bool:
        if not self.active:
            raise EOFError
        if not self.clear_to_send.is_set() or not self.clear_to_send_lock.acquire(blocking=False):
            return False
        try:
            if not self.clear_to_send.is_set() or self.wire.is_behind:
                return False
            if of.close_sent:
                raise BrokenPipeError("The channel is closed.")
            self._packets.offer(payloads())
        finally:
            self.clear_to_send_lock.release()
            self._send_soon()
        if self.wire.is_behind:
            self._send_rest_later()
        return True

    def _send_rest_later(self) -> None:
        """Let a thread send what waits for the peer, unless one does so."""
        if self._one_waits.acquire(blocking=False):
            threading.Thread(target=self._send_when_taken, name=f"{self.name} later", daemon=True).start()

    def _release_held_up(self) -> None:
        """Tell the channels that could not send that they may try again."""
        for channel in list(self._held_up):
            self._held_up.discard(channel)
            channel.note_news()

    def post_later(self, message: Message, of: SshChannel | None = None, *, last: bool = False) -> None:
        """Send from the reading thread, which must not wait: during a key exchange, queue the message."""
        if not self.clear_to_send.is_set():
            if len(self._postponed) >= MAX_POSTPONED:
                raise SSHException("The peer sends requests instead of exchanging keys")
            self._postponed.append((message, of, last))
            return
        with self.clear_to_send_lock:
            self._send_in_order(((message.asbytes(),),), of, last)
        self._send_soon()

    def post_soon(self, message: Message, of: SshChannel) -> None:
        """Send without waiting; the thread that is sending, or exchanging keys, sends ``message`` afterwards.

        If the peer accepts nothing now, a thread waits for it.
        :raises EOFError: the link is gone.
        :raises BlockingIOError: :data:`MAX_POSTPONED` messages are waiting.
        """
        if len(self._soon) >= MAX_POSTPONED:
            raise BlockingIOError(errno.EAGAIN, "too many messages wait for the peer")
        self._soon.append((message, of))
        if self.wire.takes_more:
            self._send_soon()
        else:
            self._send_rest_later()

    def _send_when_taken(self) -> None:
        """Send all waiting data; the wire gives up on a peer that accepts nothing for too long."""
        while True:
            with suppress(OSError, EOFError):
                self._catch_up()
                self._send_soon()
            self._one_waits.release()
            # Messages left meanwhile relied on this thread; if another is sending, it sends them after its own.
            left = self.wire.is_behind or (self._soon and not self.clear_to_send_lock.locked())
            if not (left and self.active and self.clear_to_send.is_set()) or not self._one_waits.acquire(
                blocking=False
            ):
                return

    def _catch_up(self) -> None:
        """Send the data that the peer did not accept at once."""
        if self.wire.is_behind:
            with self.clear_to_send_lock:
                self._packets.send(())

    def _send_soon(self) -> None:
        # A thread that finds the lock taken has already appended; the holder checks again after releasing the lock.
        while self._soon and self.clear_to_send.is_set() and self.clear_to_send_lock.acquire(blocking=False):
            try:
                while self._soon and self.clear_to_send.is_set():
                    message, of = self._soon.popleft()
                    self._send_in_order(((message.asbytes(),),), of, last=False)
            finally:
                self.clear_to_send_lock.release()
        if self._held_up and self.clear_to_send.is_set() and not self.wire.is_behind:
            self._release_held_up()

    def _send_in_order(self, payloads: Iterable[Payload], of: SshChannel | None, last: bool) -> bool:
        # sshd ends the connection when a message refers to a channel that both sides have closed.
        if of is not None:
            if of.close_sent:
                return False
            of.close_sent = last
        self._packets.send(payloads)
        return True

    def send_postponed(self) -> None:
        """Send the messages that waited for the end of a key exchange; the reading thread calls this."""
        postponed, self._postponed = self._postponed, []
        for message, of, last in postponed:
            self.post_later(message, of, last=last)
        self._send_soon()


log = logging.getLogger("connmgr_ssh")

JOIN_SECONDS = 2.0
"""Longest time that ``close`` waits for the reader thread, which it has woken."""

EXTENDED_STDERR = b"\0\0\0\1"
"""The only type of extended data (RFC 4254, section 5.2)."""

KEEP_ALIVE = bytes([common.MSG_GLOBAL_REQUEST]) + packed(b"keepalive@openssh.com") + b"\1"
"""A request that every peer answers, if only by a refusal (RFC 4254, section 4)."""

AT_ONCE = (common.MSG_CHANNEL_DATA, common.MSG_CHANNEL_EXTENDED_DATA, common.MSG_CHANNEL_WINDOW_ADJUST)
"""The messages of a channel that the thread of all links handles."""

MAX_EXTENSIONS = 64
"""Most extensions that a peer may name (RFC 8308); OpenSSH names six."""

ChannelKind = TypeVar("ChannelKind", bound=SshChannel)


def _to_channel(method: str) -> Callable[[Any, Message], None]:
    # paramiko calls the functions of its own class, whatever the channel's class.
    def handle(channel: SshChannel, message: Message) -> None:
        channel.require_open()
        getattr(channel, method)(message)

    return handle


def _data(payload: bytes | memoryview, at: int) -> bytes | memoryview:
    """Return the data of a message, whose size is at ``at``; raise SSHException if the size is wrong."""
    if int.from_bytes(payload[at : at + 4], "big") != len(payload) - at - 4:
        raise SSHException("The peer sent data of another size than it said")
    return payload[at + 4 :]


class SshLink(SendingTransport):
    """One SSH connection over a :class:`Wire`; its thread reads, and ends with the wire.

    paramiko's stubs omit its private attributes; those used here are declared below.

    :param host_keys: the known types of the host's key, to be asked for first.
    :param certified: whether a host certificate could be verified.
    """

    if TYPE_CHECKING:
        server_extensions: dict[str, bytes]
        _channels: Any
        completion_event: threading.Event | None
        _expected_packet: tuple[int, ...]
        _kex_info: dict[str, type]
        _next_channel: Callable[[], int]
        _unlink_channel: Callable[[int], None]

    _preferred_ciphers: ClassVar[tuple[str, ...]] = CIPHERS
    _preferred_macs: ClassVar[tuple[str, ...]] = MACS
    _channel_handler_table: ClassVar[dict[int, Callable[[Any, Message], None]]] = {
        common.MSG_CHANNEL_SUCCESS: _to_channel("_request_success"),
        common.MSG_CHANNEL_FAILURE: _to_channel("_request_failed"),
        common.MSG_CHANNEL_DATA: _to_channel("_feed"),
        common.MSG_CHANNEL_EXTENDED_DATA: _to_channel("_feed_extended"),
        common.MSG_CHANNEL_WINDOW_ADJUST: _to_channel("_window_adjust"),
        common.MSG_CHANNEL_REQUEST: _to_channel("_handle_request"),
        common.MSG_CHANNEL_EOF: _to_channel("_handle_eof"),
        common.MSG_CHANNEL_CLOSE: _to_channel("_handle_close"),
    }

    def __init__(self, wire: Wire, name: str, *, host_keys: Sequence[str] = (), certified: bool = False) -> None:
        super().__init__(wire, f"ssh {name}")
        self._subject = name
        self.disconnected: str | None = None
        self.abandoned: set[SshChannel] = set()
        self.fresh_until: float | None = None
        """As of its transport."""
        self.agent: ForwardedAgent | None = None
        """The agent that programs of the remote host may use."""
        self._agent_lock = threading.Lock()
        self._agent_is_reachable = False
        self._asking = threading.Lock()
        self._forget: Callable[[], None] = lambda: None
        self._host_key_order = ordered(host_keys, certified)
        self._proven_key: bytes | None = None
        self._requests = GlobalRequests(self.post)
        self.ports = RemotePorts(self._requests)
        self._packets.set_log(log)
        self._packets.when_silent = self._probe
        self._packets.deliver = self._deliver
        self._packets.deliver_at_once = self._deliver_at_once
        self._packets.when_all_read = self._wake_fed
        self._fed: set[SshChannel] = set()
        """Channels that got data of which nobody was told yet."""

        self._packets.may_rekey = self._is_settled

    @property
    def preferred_kex(self) -> tuple[str, ...]:
        """The key exchanges to offer, best first, as far as the installed paramiko has them."""
        return tuple(name for name in KEY_EXCHANGES if name in self._kex_info)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """The host key algorithms to ask for, best first."""
        return self._host_key_order

    def _log(self, level: int, msg: Any, *args: Any) -> None:
        # The caller gets paramiko's error as an exception; the log is for debugging.
        if log.isEnabledFor(logging.DEBUG):
            for line in msg if isinstance(msg, list) else [msg]:
                log.debug("%s: %s", self.name, line % args if args else line)

    def negotiate(self, deadline: Deadline) -> None:
        """Exchange versions and keys.

        :raises TimeoutError: not within the deadline.
        :raises EOFError | OSError | paramiko.SSHException: the connection ended.
        """
        self.banner_timeout = deadline.left()
        done = threading.Event()
        self.start_client(event=done)
        if not done.wait(deadline.left()):
            raise TimeoutError("The key exchange took too long.")
        if not self.active:
            raise self._reason()

    def _reason(self) -> Exception:
        error = self.get_exception() or EOFError()
        # paramiko wraps the error of a peer that closes before it sends a version.
        if isinstance(error.__context__, EOFError | OSError):
            return error.__context__
        if isinstance(error, EOFError | OSError | SSHException | TransportUnsupported):
            return error
        # Malformed messages of a peer can make paramiko raise anything.
        return SSHException(f"malformed message ({type(error).__name__})")

    def _check_banner(self) -> None:
        super()._check_banner()  # type: ignore[misc]
        self.wire.allowance = None

    @property
    def was_dropped(self) -> bool:
        """Whether the peer ended the connection before it told its version, and gave no reason but too many logins."""
        # Newer versions of OpenSSH tell why: this line for MaxStartups, another one for PerSourcePenalties.
        return not self.remote_version and self._packets.greeting in ("", "Exceeded MaxStartups")

    def run(self) -> None:
        """Read until the connection ends."""
        try:
            super().run()
        finally:
            # Wakes threads that wait for the end of a key exchange, which will not come.
            self.clear_to_send.set()
            # A channel may have been opened after paramiko notified the others, and before the link became inactive.
            for channel in list(self._channels.values()):
                channel._unlink()
            self.ports.end()
            self._requests.end()
            self._forget()
            self.wire.release()

    def close(self) -> None:
        """End the connection and its thread. Never raises; calling it again does nothing."""
        super().close()
        self.wire.close()
        self.abandoned.clear()
        if not self.is_alive():
            self.wire.release()
        elif self is not threading.current_thread():
            self.join(JOIN_SECONDS)

    def _is_settled(self) -> bool:
        """Whether login and key exchange are over, so that messages concern channels or begin a new key exchange."""
        return self.authenticated and self.clear_to_send.is_set() and not self._expected_packet

    def _deliver(self, payload: bytes | memoryview) -> bool:
        """Pass a message to its channel, if it has one; several times faster than through paramiko."""
        if payload[0] not in self._channel_handler_table or not self._is_settled():
            return False
        channel = self._channels.get(int.from_bytes(payload[1:5], "big"))
        if channel is None:
            return False
        channel.require_open()
        if payload[0] == common.MSG_CHANNEL_DATA:
            channel.receive(STDOUT, _data(payload, 5), wakes=False)
            self._fed.add(channel)
        elif payload[0] == common.MSG_CHANNEL_EXTENDED_DATA:
            data = _data(payload, 9)
            if payload[5:9] == EXTENDED_STDERR:
                channel.receive(STDERR, data, wakes=False)
                self._fed.add(channel)
            else:
                channel.discard(len(data))
        else:
            self._channel_handler_table[payload[0]](channel, Message(payload[5:]))
        return True

    def _deliver_at_once(self, payload: bytes | memoryview) -> bool:
        """As :meth:`_deliver`, but only what needs no answer, so that nothing here waits for the peer to read."""
        kind = payload[0]
        if kind in (common.MSG_REQUEST_SUCCESS, common.MSG_REQUEST_FAILURE) and self._is_settled():
            # Of keep-alives, mostly: else each would wake the link's own thread.
            handle = self._parse_request_success if kind == common.MSG_REQUEST_SUCCESS else self._parse_request_failure
            handle(Message(payload[1:]))
            return True
        if kind == common.MSG_CHANNEL_EXTENDED_DATA and payload[5:9] != EXTENDED_STDERR:
            return False
        return kind in AT_ONCE and self._deliver(payload)

    def _wake_fed(self) -> None:
        """Tell the channels that have data, now that all that came at once is decrypted."""
        # A reader that was woken for the first packet would wait for the interpreter, which this thread has, and then
        # find one packet where six have come.
        while self._fed:
            self._fed.pop().note_news()

    def open_stream(
        self,
        kind: type[ChannelKind],
        name: bytes,
        payload: bytes,
        deadline: Deadline,
        prepare: Callable[[ChannelKind], None] = lambda _: None,
    ) -> ChannelKind:
        """Open a channel as :meth:`ask_for_stream` does, and wait for it as :meth:`SshChannel.wait_open` does."""
        channel = self.ask_for_stream(kind, name, payload, deadline, prepare)
        channel.wait_open(deadline)
        return channel

    def ask_for_stream(
        self,
        kind: type[ChannelKind],
        name: bytes,
        payload: bytes,
        deadline: Deadline,
        prepare: Callable[[ChannelKind], None] = lambda _: None,
    ) -> ChannelKind:
        """Ask for a channel of the SSH type ``name``; ``prepare`` gets it before the remote host knows of it.

        :raises TimeoutError: the request could not be sent in time.
        :raises EOFError: the connection is gone.
        """
        channel = self._new_channel(kind)
        prepare(channel)
        fields = struct.pack(">III", channel.number, kind.first_window, PACKET_BYTES)
        self.post(Message(bytes([common.MSG_CHANNEL_OPEN]) + packed(name) + fields + payload), deadline)
        # The link may have ended since, and its thread may have ended all channels before this one was among them.
        if not self.active:
            raise EOFError
        return channel

    def forward_agent(self, channel: SshChannel, deadline: Deadline) -> bool:
        """Have the remote host offer the agent to programs, if there is one; return False if it refuses.

        OpenSSH's sshd offers it to all sessions that begin after the first request on a connection, and refuses further
        requests. Other servers want a request for each session.
        """
        if self.agent is None:
            return True
        with self._agent_lock:
            agreed = channel.request(b"auth-agent-req@openssh.com", b"", deadline)
            self._agent_is_reachable = self._agent_is_reachable or agreed
            return self._agent_is_reachable

    def _new_channel(self, kind: type[ChannelKind]) -> ChannelKind:
        with self.lock:
            number = self._next_channel()
            channel = kind(self, number)
            self._channels.put(number, channel)
            self.channels_seen[number] = True
        return channel

    def forget(self, channel: SshChannel) -> None:
        """Accept no more messages for a closed channel."""
        self._unlink_channel(channel.number)

    def _probe(self) -> None:
        """Ask a silent peer for a sign of life, or close the link after too many silences."""
        if self.wire.silences >= MAX_SILENCES:
            raise EOFError
        if self.authenticated and self.clear_to_send.is_set():
            # This is the reading thread, or the one that looks after all links. Neither must wait for a thread that is
            # sending: that one may wait for the peer to read, while the peer waits for us. Nor may the socket be waited
            # for: it is full if the peer hangs. A thread that sends finds that out anyway.
            self._requests.ask_at_once(lambda: self._packets.try_send(Message(KEEP_ALIVE)))
            if self.wire.is_behind:
                self._send_rest_later()

    def leave_to(self, keep_alives: KeepAlives, reader: SharedReader) -> None:
        """Let ``keep_alives`` ask the peer when it is silent, and ``reader`` read small messages, where that can be.

        Otherwise the link's own thread does both.
        """
        # The time limit of a stream that is no socket is one for reads and writes.
        if self.wire.socket is None or self.wire.interval is None:
            return
        self.wire.read_without_limit()
        number = keep_alives.watch(self, self.wire.interval)
        if reader.join(self._packets):
            self._packets.reader = reader

        def forget() -> None:
            keep_alives.forget(number)
            reader.leave(self._packets)

        self._forget = forget
        # It may have ended before that line.
        if not self.active:
            self._forget()

    def look_after(self) -> float | None:
        """Ask a peer that was silent for an interval; see :class:`connmgr_ssh.keepalives.Watched`."""
        left, interval = self.wire.until_silence(), self.wire.interval
        if not self.active or left is None or interval is None:
            return None
        if left > 0:
            return left
        try:
            if self.wire.count_silence():
                self._probe()
        except (OSError, EOFError):
            # The link's own thread reads the end, and tells why.
            self.wire.close()
            return None
        return interval

    def answers(self, timeout: float) -> bool:
        """Whether the peer is there; one that was silent for too long has ``timeout`` seconds to answer."""
        if not self.wire.overdue:
            return self.active
        deadline = Deadline(timeout)
        if not self._asking.acquire(timeout=timeout):
            return self.active and not self.wire.overdue
        try:
            if self.wire.overdue:
                # paramiko sets this event when the answer arrives, and when the link ends.
                self.completion_event = heard = threading.Event()
                with suppress(OSError, EOFError):
                    self._requests.ask(Message(KEEP_ALIVE), deadline)
                    heard.wait(deadline.left())
            return self.active and not self.wire.overdue
        finally:
            self._asking.release()

    def _parse_request_success(self, m: Message) -> None:
        self._requests.answered(m)
        super()._parse_request_success(m)  # type: ignore[misc]

    def _parse_request_failure(self, m: Message) -> None:
        self._requests.answered(None)
        super()._parse_request_failure(m)  # type: ignore[misc]

    def _parse_channel_open(self, m: Message) -> None:
        kind, number, window, packet = m.get_binary(), m.get_int(), m.get_int(), m.get_int()
        accept: Callable[[TcpStream], None] | None
        if kind == b"forwarded-tcpip":
            m.get_binary()
            listener = self.ports.taking(m.get_int())
            accept = listener.put if listener else None
        elif kind == b"forwarded-streamlocal@openssh.com":
            listener = self.ports.taking(m.get_binary())
            accept = listener.put if listener else None
        elif kind == b"auth-agent@openssh.com":
            accept = self.agent.serve if self.agent and self._agent_is_reachable and self.agent.takes() else None
        else:
            m.rewind()
            super()._parse_channel_open(m)  # type: ignore[misc]
            return
        if accept is None:
            reason = struct.pack(">II", number, common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)
            self.post_later(Message(bytes([common.MSG_CHANNEL_OPEN_FAILURE]) + reason + packed(b"") + packed(b"")))
            return
        channel = self._new_channel(TcpStream)
        channel._set_remote_channel(number, window, packet)
        confirmed = struct.pack(">IIII", number, channel.number, channel.first_window, PACKET_BYTES)
        self.post_later(Message(bytes([common.MSG_CHANNEL_OPEN_SUCCESS]) + confirmed), channel)
        accept(channel)

    def _parse_kex_init(self, m: Message) -> None:
        lists = super()._really_parse_kex_init(m)  # type: ignore[misc]
        if reason := disagreement(lists):
            raise TransportUnsupported(f"{self._subject} and connmgr have {reason}")
        m.rewind()
        super()._parse_kex_init(m)  # type: ignore[misc]

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        # One RSA key can sign by several algorithms (RFC 8332, section 3), so its holder could sign by another one than
        # was agreed on, such as SHA-1.
        agreed, used = (self.host_key_type or "").removesuffix(CERTIFICATE), Message(sig).get_binary()
        if used != agreed.encode():
            raise TransportUnsupported(
                f"{self._subject} did not sign the key exchange by the agreed algorithm {agreed}."
            )
        super()._verify_key(host_key, sig)  # type: ignore[misc]
        # The login has judged the key of the first exchange. A later exchange proves a key anew, and nobody would look
        # whether that one is known.
        if self._proven_key is not None and self._proven_key != host_key:
            raise SSHException("The host changed its key in the middle of the connection")
        self._proven_key = host_key

    def proven_key(self) -> tuple[bytes, bytes | None]:
        """Return the key that the host has proved to hold, and the certificate that contained it, if any."""
        if self.host_key is None or self._proven_key is None:
            raise SSHException("No keys have been exchanged yet")
        certified = CERTIFICATE in (self.host_key_type or "")
        return self.host_key.asbytes(), self._proven_key if certified else None

    def _parse_newkeys(self, m: Message) -> None:
        super()._parse_newkeys(m)  # type: ignore[misc]
        self.send_postponed()

    def _parse_ext_info(self, m: Message) -> None:
        # paramiko would loop as often as the peer says.
        count = m.get_int()
        if count > MAX_EXTENSIONS:
            raise SSHException("The peer names too many extensions")
        self.server_extensions = {m.get_binary().decode("ascii", "replace"): m.get_binary() for _ in range(count)}

    def _parse_global_request(self, m: Message) -> None:
        # A refusal of all requests. Those of OpenSSH that matter here are keep-alives, which any answer satisfies, and
        # hostkeys-00@openssh.com, which wants none.
        m.get_text()
        if m.get_boolean():
            self.post_later(Message(bytes([common.MSG_REQUEST_FAILURE])))

    def _parse_disconnect(self, m: Message) -> None:
        m.get_int()
        self.disconnected = m.get_binary().decode(errors="replace")

    def _parse_channel_open_failure(self, m: Message) -> None:
        number, reason, text = m.get_int(), m.get_int(), m.get_binary().decode(errors="replace")
        channel = self._channels.get(number)
        if isinstance(channel, SshChannel):
            # A channel that was closed before the answer came is refused too: nothing is left there to be closed.
            self.abandoned.discard(channel)
            self.forget(channel)
            channel.refuse(reason, text)
        else:
            m.rewind()
            super()._parse_channel_open_failure(m)  # type: ignore[misc]
