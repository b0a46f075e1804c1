"""A live link to a connection's machine, shared by everything that runs over it, and its second chain.

Each user has a lease of the link (:class:`Lease`); the link closes with its last lease. Its :class:`Admission` says who
may have one. Sessions use its first chain, everything else a :class:`SpareTransport`, which opens a second chain if the
remote host refuses another channel.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from connmgr.engine.rpc import Helpers
from connmgr.errors import (
    ChannelRefused,
    ConnectTimeout,
    IntegrityError,
    NoShellInside,
    RequestError,
    SecretLocked,
    ShellLost,
)
from connmgr.events import Publish, unheard
from connmgr.links.chain import Chain, LeaseCarrier, Target, environment_of, no_loan_for, open_chain
from connmgr.links.login import WrappedTransport
from connmgr.plugin import (
    DEFAULT_SEND_ENV,
    LEAST_SECONDS,
    ByteStream,
    Channel,
    ClientEnvironment,
    Deadline,
    Listener,
    Pty,
    Transport,
)
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.signers import Signers
from connmgr.vault import Connection, Vault
from connmgr.vault.names import elevation_of
from connmgr.vault.principals import Principals

FREE_LINK_SECONDS = 5.0
"""Longest wait for a channel of the second chain."""

CHANNEL_END_SECONDS = 1.0
"""Time within which the remote should notice that a channel was closed."""

RETRY_SECONDS = 0.05

ADMITTED_SECONDS = 1.0
"""Changes by another daemon on the same vault may go unnoticed this long; changes by this one take effect at once."""

ALONE_SECONDS = 30.0
"""The same where no other daemon can have the vault open: what is looked at anew was changed past connmgr."""


def open_link(
    vault: Vault,
    registry: Registry,
    signers: Signers | None,
    target: Target,
    access: Access,
    timeout: float,
    send_env: Sequence[str] = DEFAULT_SEND_ENV,
    publish: Publish = unheard,
    lease_carrier: LeaseCarrier | None = None,
) -> Link:
    """Open a link to ``target`` within ``timeout`` seconds; see :func:`connmgr.links.chain.open_chain` for the errors.

    The caller gets the first lease.
    """
    # First, because it may raise.
    environment = environment_of(vault, registry, target, send_env)
    opening = partial(open_chain, vault, registry, signers, target, lease_carrier=lease_carrier, publish=publish)
    chain = opening(access, timeout)
    helpers = Helpers()
    transport = SpareTransport(
        chain.transport,
        # It is opened for files and for killing, perhaps for another client's request. That request must not use the
        # password or agent that this client lent for its own login.
        lambda seconds: opening(access.without_loan, min(seconds, timeout), forwards=False),
        helpers.dismiss,
    )

    def unchanged(record: Connection | None) -> bool:
        if target.id is None:
            return True
        if record is not None:
            return (record.data, record.dependency_digest) == (target.data, target.dependency_digest)
        return vault.connections.unchanged(target.id, target.data, target.dependency_digest)

    # An elevated connection changes with what is stored for others: the password of a category, and who is in it.
    is_alone = not vault.database.is_shared and (target.id is None or elevation_of(target.id) is None)
    admission = Admission(
        vault.principals,
        chain.sealed,
        unchanged,
        forwards_agent=chain.transport.forwards_agent,
        connection=target.id,
        refusal=partial(no_loan_for, vault, chain.hops),
        lasts=ALONE_SECONDS if is_alone else ADMITTED_SECONDS,
    )
    link = Link(target, chain, transport, helpers, admission)
    link.environment = environment
    link.is_borrowed = access.without_loan is not access
    return link


class Link:
    """An open chain, its helpers, and its admission checks. The link closes when its last lease ends.

    Safe to use from several threads.
    """

    def __init__(
        self, target: Target, chain: Chain, transport: SpareTransport, helpers: Helpers, admission: Admission
    ) -> None:
        self.target = target
        """The data to which it was opened."""
        self.first = chain.transport
        """The transport of sessions. Everything else uses ``transport``, which may open a second chain."""
        self.transport = transport
        self.helpers = helpers
        self.admission = admission
        self.when_closed: Callable[[Link], None] = lambda _: None
        """Called once with this link, before it closes."""
        self.environment = ClientEnvironment(DEFAULT_SEND_ENV)
        """The variables of clients that reach the programs there."""
        self.is_borrowed = False
        """Whether its login used a password or an agent that a client lent: the daemon may be unable to repeat it."""
        self._chain = chain
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._outside: ContainerHost | None = None
        self._leases: set[Lease] = set()
        self._closed = False
        self._retired = False

    @property
    def alive(self) -> bool:
        """Whether the link works, as far as can be seen without asking the remote."""
        return not self._closed and self.first.alive

    @property
    def usable(self) -> bool:
        """Whether it can be leased: it is alive, not retired, and not too old by the policy of a signer."""
        return self.alive and not self._retired and (self.fresh_until is None or time.time() < self.fresh_until)

    @property
    def retired(self) -> bool:
        """Whether its connection was changed or removed since it was opened."""
        return self._retired

    @property
    def fresh_until(self) -> float | None:
        """Until when it can be leased, by the policy of a signer; None if there is none."""
        return self._chain.fresh_until

    @property
    def lease_count(self) -> int:
        """The number of leases that have not ended."""
        return len(self._leases)

    @property
    def outside(self) -> ContainerHost | None:
        """The host that has its jobs, if :meth:`look_for_shell` has found no shell."""
        return self._outside

    def look_for_shell(self, timeout: float) -> ContainerHost | None:
        """Return None if there is a shell at the link's end, otherwise the host where jobs are kept.

        :raises connmgr.errors.OperationError: no answer came within ``timeout`` seconds.
        """
        if not isinstance(self.first, WrappedTransport):
            return None
        with self._looking:
            if self._outside is None:
                try:
                    self.transport.open_channel(["/bin/sh", "-c", ":"], timeout=timeout).close()
                except NoShellInside:
                    self._outside = ContainerHost(self.first)
            return self._outside

    def retire(self) -> None:
        """Refuse all further leases of the link."""
        self._retired = True

    def lease(self, *, opener: bool = False) -> Lease:
        """Return the right to use the link.

        :raises ShellLost: it is not usable.
        """
        lease = Lease(self, opener=opener)
        with self._lock:
            # Checked under the lock that `released` takes: a lease is either counted before the last one ends, and
            # keeps the link open, or it comes after `_closed` was set, and is refused.
            if not self.usable:
                raise ShellLost("The link is closed.")
            self._leases.add(lease)
        return lease

    def released(self, lease: Lease) -> None:
        """End a lease; close the link after the last one. Calling it again does nothing."""
        with self._lock:
            self._leases.discard(lease)
            if self._leases or self._closed:
                return
            self._closed = True
        # Outside of the lock, because closing waits for the network.
        with ExitStack() as cleanup:
            cleanup.callback(self._chain.close)
            cleanup.callback(self.transport.close)
            cleanup.callback(self.helpers.close)
            if self._outside is not None:
                cleanup.callback(self._outside.close)
            self.when_closed(self)


class Lease:
    """The right to use a link until :meth:`release`; ``opener`` says that the link was opened for this lease."""

    def __init__(self, link: Link, *, opener: bool) -> None:
        self.link = link
        self.opener = opener

    @property
    def transport(self) -> Transport:
        """The transport over which other links may lead."""
        return self.link.first

    @property
    def fresh_until(self) -> float | None:
        """Until when the link may be leased, by the policy of a signer."""
        return self.link.fresh_until

    def release(self) -> None:
        """End the lease. Calling it again does nothing."""
        self.link.released(self)


class Outdated(Exception):
    """A connection was changed or removed after a link to it was opened."""


Who = tuple[int, bytes | None]


class Admission:
    """Admits sessions that may open all ``secrets``, while ``unchanged()`` holds. Safe to use from several threads.

    ``unchanged`` compares with the given row of the connection, or reads the row. If the link ``forwards_agent``, only
    sessions that may use the agent are admitted. A loan admits a token that may not open the secrets itself, unless
    there is a ``refusal``; its use is noted for ``connection``. An admission ``lasts`` so many seconds.
    """

    def __init__(
        self,
        principals: Principals,
        secrets: Collection[Mapping[str, Any]],
        unchanged: Callable[[Connection | None], bool],
        *,
        forwards_agent: bool = False,
        connection: str | None = None,
        refusal: Callable[[], str | None] = lambda: None,
        lasts: float = ADMITTED_SECONDS,
    ) -> None:
        self._lasts = lasts
        self._principals = principals
        self._secrets = secrets
        self._unchanged = unchanged
        self._forwards_agent = forwards_agent
        self._connection = connection
        self._refusal = refusal
        self._admitted: dict[Who, float] = {}

    def check(self, access: Access) -> None:
        """Check that ``access`` may open the secrets, and that the connections are unchanged.

        :raises SecretLocked, IntegrityError: as :meth:`Principals.require`.
        :raises Outdated: a connection changed; end the shell.
        :raises ScopeDenied: the link forwards an ssh-agent, and ``access`` may not use it.
        """
        # sshd offers a forwarded agent to all sessions of its connection, so the whole link is refused.
        if self._forwards_agent:
            access.asker.require_forwarding()
        # Remembered, because each command asks and the check reads the principals from the database. A change of the
        # users, or another unlocked user, is another `who`.
        who = self._who(access)
        if self._admits(who):
            return
        by = self._principals.entitled(self._secrets, access, self._refusal) if self._secrets else access
        if by is access:
            self._decide(who, None)
            return
        # The admission by a loan is not cached, because the loan may end at any moment.
        if not self._unchanged(None):
            raise Outdated
        if self._connection is not None:
            by.note(self._connection)

    def has_admitted(self, access: Access) -> bool:
        """Whether :meth:`check` would find so without reading anything, for half of an admission's time yet."""
        if self._forwards_agent and not access.asker.may_forward:
            return False
        return self._admits(self._who(access), self._lasts / 2)

    def _who(self, access: Access) -> Who:
        user = access.principal
        return self._principals.changes, user.key_id if user else None

    def _admits(self, who: Who, longer: float = 0.0) -> bool:
        return time.monotonic() + longer < self._admitted.get(who, 0.0)

    def _decide(self, who: Who, record: Connection | None) -> None:
        if not self._unchanged(record):
            raise Outdated
        now = time.monotonic()
        self._admitted = {**{old: end for old, end in self._admitted.items() if end > now}, who: now + self._lasts}


def admitted_connections(entries: Iterable[tuple[Admission, Connection]], access: Access) -> list[Connection]:
    """Return the connections to which ``access`` is admitted, each with its current row; principals are read once.

    For the others :meth:`Admission.check` raises the reason. The result holds for half of an admission's time.
    """
    requirement, connections = None, []
    for admission, record in entries:
        if admission._forwards_agent and not access.asker.may_forward:
            continue
        if not admission.has_admitted(access):
            who = admission._who(access)
            try:
                if admission._secrets:
                    requirement = requirement or admission._principals.requirement(access)
                    requirement(admission._secrets)
                admission._decide(who, record)
            except SecretLocked:
                if access.lent() is None or not _by_loan(admission, access):
                    continue
            except (IntegrityError, Outdated):
                continue
        connections.append(record)
    return connections


def _by_loan(admission: Admission, access: Access) -> bool:
    try:
        admission.check(access)
    except (SecretLocked, IntegrityError, Outdated):
        return False
    return True


class ContainerHost:
    """The host of a container without a shell: its jobs are kept there. The link of the container closes it."""

    def __init__(self, inside: WrappedTransport) -> None:
        self.transport = inside.outer
        # Separate from the link's own helpers, which are inside the container.
        self.helpers = Helpers()
        self._inside = inside

    def words(self, argv: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the argv by which the host runs ``argv`` in the container."""
        return tuple(map(os.fsencode, self._inside.words(list(map(os.fsdecode, argv)))))

    def close(self) -> None:
        """Close the helpers on the host."""
        self.helpers.close()


class SpareTransport(Transport):
    """A transport that opens its chain a second time when the remote refuses another channel.

    sshd refuses with ``MaxSessions 1``. Then ``dismiss`` may close an idle channel, and returns whether there was one.
    If that is not enough, ``open_another`` opens the second chain within the given seconds. The second chain is kept
    until :meth:`close`, and replaced when it is lost. The first chain belongs to its owner.
    """

    def __init__(
        self, first: Transport, open_another: Callable[[float], Chain], dismiss: Callable[[], bool] = lambda: False
    ) -> None:
        self.runs_locally = first.runs_locally
        self.forwards_agent = first.forwards_agent
        self._first = first
        self._open_another = open_another
        self._dismiss = dismiss
        # Held while the second chain is opened, so that it is opened only once.
        self._lock = threading.Lock()
        self._second: Chain | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        return self._first.alive

    @property
    def carries_streams(self) -> bool:
        return self._first.carries_streams

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        try:
            return self._first.open_channel(argv, pty=pty, timeout=timeout)
        except ChannelRefused as refusal:
            if self._dismiss():
                with contextlib.suppress(ChannelRefused):
                    return self._once_free(self._first.open_channel, argv, pty, CHANNEL_END_SECONDS, deadline)
            try:
                return self._once_free(self._on_second, argv, pty, FREE_LINK_SECONDS, deadline)
            except RequestError as error:
                # The client that started the session may be gone, and with it the access to the chain's secrets.
                raise refusal from error

    @property
    def can_learn_language(self) -> bool:
        return self._first.can_learn_language

    def learn_language(self, timeout: float) -> None:
        self._first.learn_language(timeout)

    def open_line(self, line: str, *, timeout: float) -> Channel | None:
        # What a full chain refuses is tried again by open_channel(), which makes room.
        try:
            return self._first.open_line(line, timeout=timeout)
        except ChannelRefused:
            return None

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        return self._first.open_tcp(host, port, timeout=timeout)

    def open_unix(self, path: str, *, timeout: float) -> ByteStream:
        return self._first.open_unix(path, timeout=timeout)

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        return self._first.listen_tcp(host, port, timeout=timeout)

    def listen_unix(self, path: str, *, timeout: float) -> Listener:
        return self._first.listen_unix(path, timeout=timeout)

    def close(self) -> None:
        self._closed = True
        self._close_second()

    def _close_second(self) -> None:
        # Whoever holds the lock may be opening the second chain, which takes up to its deadline; close() must not wait
        # that long. That thread looks at `_closed` after it has released the lock, and closes what it opened.
        if self._lock.acquire(blocking=False):
            try:
                second, self._second = self._second, None
            finally:
                self._lock.release()
            if second is not None:
                second.close()

    def _once_free(
        self,
        open_channel: Callable[..., Channel],
        argv: Sequence[str],
        pty: Pty | None,
        timeout: float,
        deadline: Deadline,
    ) -> Channel:
        """Start ``argv`` on a full chain, whose closed channels may take up to ``timeout`` seconds to end."""
        until = deadline.within(timeout)
        while True:
            try:
                return open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
            except ChannelRefused:
                if until.passed:
                    raise
            # The channel that occupies the chain may be idle by now. The remote is asked again after a pause, because
            # sshd sends nothing when it could take another session.
            self._dismiss()
            time.sleep(RETRY_SECONDS)

    def _on_second(self, argv: Sequence[str], *, pty: Pty | None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        chain = self._opened(deadline)
        try:
            return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
        except ShellLost:
            chain = self._opened(deadline, instead_of=chain)
        return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))

    def _opened(self, deadline: Deadline, *, instead_of: Chain | None = None) -> Chain:
        """Return the second chain. Open it if there is none yet, or if it is ``instead_of``, which is lost."""
        if not self._lock.acquire(timeout=deadline.left(LEAST_SECONDS)):
            raise ConnectTimeout("A second connection is still being opened.")
        try:
            if self._closed:
                raise ShellLost("The session was stopped.")
            if self._second is not None and self._second is instead_of:
                self._second = None
                instead_of.close()
            if self._second is None:
                self._second = self._open_another(deadline.left(LEAST_SECONDS))
            second = self._second
        finally:
            self._lock.release()
            # close() has run meanwhile, and found the lock taken.
            if self._closed:
                self._close_second()
        if self._closed:
            raise ShellLost("The session was stopped.")
        return second
