"""The sending half of a link: the order of messages, also during a key exchange, and which thread waits.

Four kinds of callers send, and differ in what they may wait for:

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
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import paramiko
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from connmgr.plugin import Deadline
from connmgr_ssh.channels import PACKET_BYTES, WINDOW_BYTES, SshChannel
from connmgr_ssh.packets import Packets, Payload, Wire

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
        if self.wire.is_behind and self._one_waits.acquire(blocking=False):
            threading.Thread(target=self._send_when_taken, name=f"{self.name} later", daemon=True).start()
        return True

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
        elif self._one_waits.acquire(blocking=False):
            threading.Thread(target=self._send_when_taken, name=f"{self.name} later", daemon=True).start()

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
