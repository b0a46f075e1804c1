"""A stored connection as a chain of hops: the machines that it leads over, and how they are opened.

:func:`open_chain` opens the hops as live transports, each over the one before it. The other functions read the hops
without opening them, and tell which hosts they would dial, whether a caller may open their secrets, which variables of
a client would reach the last one, and which host keys are known.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from connmgr.contract.event import LINK, TOUCH
from connmgr.errors import (
    AuthFailed,
    ConnectionCycle,
    ConnectTimeout,
    ConnmgrError,
    HostKeyChanged,
    HostKeyUnknown,
    IntegrityError,
    InvalidRequest,
    OperationError,
    SecretLocked,
    TransportUnsupported,
)
from connmgr.events import Publish, unheard
from connmgr.fields import map_secrets, references
from connmgr.links.login import WrappedTransport
from connmgr.plugin import (
    LEAST_SECONDS,
    Asker,
    ClientEnvironment,
    ConnectionType,
    Deadline,
    Dialled,
    ForgottenKey,
    Transport,
    Tunnel,
    Wrapper,
)
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.signers import Signer, Signers
from connmgr.vault import Connection, Vault
from connmgr.vault.connection_rows import SET_BY_TOKEN, sealed_secrets
from connmgr.vault.dependencies import complete_digest
from connmgr.vault.names import base_of, elevation_of

FRESH_SECONDS = 1.0
"""Age in seconds at which sealed secrets are read again."""

MAX_REMEMBERED = 20_000
"""Most connections whose sealed secrets are remembered."""


@dataclass(frozen=True)
class Target:
    """The data of a connection to open. The last three members are None unless the connection is stored."""

    type: str
    data: Mapping[str, Any]
    id: str | None = None
    dependency_digest: str | None = None
    name: str | None = None

    @classmethod
    def stored(cls, record: Connection) -> Target:
        """Return a stored connection as a target; an elevated connection has the name of the one below it."""
        path = record.path if elevation_of(record.id) is None else record.path[:-1]
        return cls(record.type, record.data, record.id, record.dependency_digest, "/".join(path))

    @property
    def digest(self) -> str:
        """The digest of this data and of all that the connection runs over."""
        return complete_digest(self.type, self.data, self.dependency_digest)


@dataclass
class Chain:
    """Live links, the last of which carries the connection's channels.

    ``sealed`` has the encrypted form of every secret that was opened for the chain, because later users of the chain
    must be allowed to open them too.
    """

    transport: Transport
    sealed: Sequence[Mapping[str, Any]]
    hops: Sequence[str | None]
    """The ids of its connections, the last one first; None for one that is not stored."""
    _links: contextlib.ExitStack = field(repr=False)
    fresh_until: float | None = None
    """The earliest :attr:`Transport.fresh_until` of its links."""

    def close(self) -> None:
        """Close every link, the last one first. Never raises; calling it again does nothing."""
        self._links.close()


class CarrierLease(Protocol):
    """The right to use a link that others use too, and over which a chain leads."""

    @property
    def transport(self) -> Transport: ...

    @property
    def fresh_until(self) -> float | None: ...

    def release(self) -> None: ...


LeaseCarrier = Callable[[str, Access, float], CarrierLease]
"""Leases a link of a connection, opening it within so many seconds if there is none."""


def open_chain(
    vault: Vault,
    registry: Registry,
    signers: Signers | None,
    target: Target,
    access: Access,
    timeout: float,
    *,
    forwards: bool = True,
    lease_carrier: LeaseCarrier | None = None,
    publish: Publish = unheard,
) -> Chain:
    """Open all connections below ``target`` and then ``target`` itself, within ``timeout`` seconds.

    The nearest gateway on the way is not opened anew, if ``lease_carrier`` is given: thousands of machines behind it
    are reached over one link to it. Only the link of ``target`` itself may forward an ssh-agent, and only if the chain
    ``forwards``. Security keys that must be touched are published.

    :raises OperationError: a link could not be opened; the message names it unless it is the connection itself.
    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret of a link; nothing was opened.
    :raises ConnectionCycle | connmgr.errors.IntegrityError: as :func:`hops_to`.
    """
    deadline = Deadline(timeout)
    hops = list(hops_to(vault, registry, target))
    sealed = [secret for hop in hops for secret in _sealed_secrets(registry, hop)]
    hop_signers = (
        []
        if signers is None
        else [signer for hop in hops if (signer := _signer_of(registry, signers, hop)) is not None]
    )
    # Whoever may not open an authority's key logs in nowhere by its certificates, nor shares a link that did.
    sealed += [secret for signer in hop_signers for secret in signer.secrets]
    by = vault.principals.entitled(sealed, access, partial(no_loan_for, vault, [hop.id for hop in hops]))
    if target.id is not None:
        by.note(target.id)
    with contextlib.ExitStack() as links:
        transport: Transport | None = None
        ends: list[float] = []
        carrier = len(hops) if lease_carrier is None else _carrier(registry, hops)
        if lease_carrier is not None and carrier < len(hops):
            with _hop_in_errors(target, hops[carrier]):
                lease = lease_carrier(hops[carrier].id or "", access, deadline.left(LEAST_SECONDS))
            links.callback(lease.release)
            transport = lease.transport
            ends += [] if lease.fresh_until is None else [lease.fresh_until]
        for hop in reversed(hops[:carrier]):
            # The secrets of a hop are opened only now, after all hops before it have accepted their logins. If one
            # fails, the secrets of those behind it were never in memory in plain text.
            asker = replace(
                access.asker, is_own=forwards and hop is hops[0], touch=partial(publish, LINK, TOUCH, target.id)
            )
            if signers is not None:
                certify = partial(signers.certify, hop_signers, connection=hop.id, asking=access, by=by)
                asker = replace(asker, certify=certify)
            with _hop_in_errors(target, hop):
                plain = opened_data(vault, registry, hop.type, hop.data, by, deadline)
                transport = _open_link(registry, hop.type, asker, plain, transport, deadline)
                links.callback(transport.close)
                ends += [] if transport.fresh_until is None else [transport.fresh_until]
                if deadline.passed:
                    raise ConnectTimeout(f"The connection was not open within {timeout:.0f} s.")
        if transport is None:
            raise ConnectionCycle("The connection has no first hop that could be opened.")
        return Chain(transport, sealed, [hop.id for hop in hops], links.pop_all(), min(ends, default=None))


def _carrier(registry: Registry, hops: Sequence[Hop]) -> int:
    """Return the index of the nearest hop whose link can be shared by all that is reached over it; without one, the
    number of hops.

    It carries nothing but streams: a program that is wrapped into another machine's runs on that machine, and a link
    that forwards an agent would offer it to all.
    """
    for place in range(1, len(hops)):
        over, hop = registry.get(hops[place - 1].type), hops[place]
        carries = isinstance(over, ConnectionType) and isinstance(registry.get(hop.type), ConnectionType)
        if carries and hop.id is not None and elevation_of(hop.id) is None and not hop.data.get("forwardAgent"):
            return place
    return len(hops)


def no_loan_for(vault: Vault, hops: Sequence[str | None]) -> str | None:
    """Return why no loan (:mod:`connmgr.secrets.loans`) is used for a chain of ``hops``, or None.

    A loan lets its token use secrets, but not choose where they go. So no token may have made or changed a connection
    of the chain: it could send the secret to a host of its own, or put another host under a password for sudo.
    """
    for id in hops:
        if id is None or vault.connections.temporary.get(base_of(id)) is not None:
            return "A loan is used for stored connections only."
        record = vault.connections.get(base_of(id))
        if SET_BY_TOKEN in record.cache:
            # Not by its name: the token may not see it.
            named = "this connection" if id == hops[0] else "a connection that this one runs over"
            return (
                f"The loan to this token does not apply here, because a token has added or changed {named}. It applies "
                "once the owner has saved that connection's data again."
            )
    return None


def opened_data(
    vault: Vault, registry: Registry, kind: str, data: Mapping[str, Any], access: Access, deadline: Deadline
) -> dict[str, Any]:
    """Return the ``data`` of a connection of the type ``kind`` with its secrets in plain text.

    Those that are elsewhere are fetched now, before ``deadline``.
    :raises connmgr.errors.SecretLocked: ``access`` may not open one of them.
    :raises connmgr.errors.SecretUnavailable: a source does not return one.
    """

    def plain(secret: Any) -> str:
        return registry.sources.plain(secret, deadline, lambda sealed: vault.principals.unseal(sealed, access))

    return map_secrets(registry.schema(kind), data, plain)


def _open_link(
    registry: Registry,
    kind: str,
    asker: Asker,
    plain: Mapping[str, Any],
    via: Transport | None,
    deadline: Deadline,
) -> Transport:
    connection_type = registry.get(kind)
    if isinstance(connection_type, Wrapper):
        if via is None:
            raise OperationError(f"A connection of type {kind} runs inside another connection: name that one.")
        return WrappedTransport(connection_type, plain, via)
    if isinstance(connection_type, Tunnel):
        raise TransportUnsupported("A tunnel carries no processes.")
    return connection_type.open_for(asker, plain, via, timeout=deadline.left(LEAST_SECONDS))


_ADVICE: dict[type[OperationError], str] = {
    HostKeyUnknown: "`connmgr trust {name}` shows the key and asks.",
    HostKeyChanged: "`connmgr trust --forget {name}` forgets the old key.",
}
"""The commands that help after an error, for the name of the requested connection."""


@contextlib.contextmanager
def _hop_in_errors(target: Target, hop: Hop) -> Iterator[None]:
    """Name the hop in errors, also for rights, and the command that helps for the connection ``target``.

    The details of a failed login say which stored connection has the credentials, and which one to log in to. A client
    can then ask for what is missing, and lend it by ``/connection/login``.
    """
    try:
        yield
    except OperationError as error:
        # A carrier has named the hop of its own way.
        error.hop = error.hop or hop.id
        if isinstance(error, AuthFailed) and hop.id is not None and target.id is not None:
            name = hop.label or target.name or ""
            error.details = {"connection": hop.id, "name": name, "type": hop.type, **error.details, "opens": target.id}
        # Without a host no file has the key: it is the connection's hostKey, or revoked.
        if advice := _ADVICE.get(type(error)) if "host" in error.details else None:
            # The link of a carrier is opened as one of its own, whose error has the advice for that.
            error.message = error.message.removesuffix(" " + advice.format(name=shlex.quote(hop.label)))
        if hop.label and not error.names_hop:
            error.message, error.names_hop = f"{hop.label}: {error.message}", True
        if target.name is not None and advice:
            error.message += " " + advice.format(name=shlex.quote(target.name))
        raise


@dataclass(frozen=True)
class Hop:
    """A stored link of a chain; ``label`` names it, except for the requested connection itself."""

    type: str
    data: Mapping[str, Any]
    label: str = ""
    id: str | None = None


def hops_to(vault: Vault, registry: Registry, target: Target) -> Iterator[Hop]:
    """Yield the hops that lead to ``target``, from the connection itself to the one that runs over nothing.

    :raises ConnectionCycle: the connection runs over itself.
    :raises connmgr.errors.IntegrityError: a hop was changed outside of connmgr.
    """
    hop, visited = Hop(target.type, target.data, id=target.id), set[str]()
    # All hops come from one snapshot, whose digest the target's code covers. Secrets are sent only to the data that was
    # checked here, even if a row changes before its link is opened.
    carriers = vault.connections.carriers_of(
        references(registry.schema(target.type), target.data), target.dependency_digest
    )
    while True:
        if isinstance(registry.get(hop.type), Tunnel):
            raise TransportUnsupported(
                f"{hop.label or 'The connection'} is a tunnel, and no program can run in it: use the connection that "
                "it goes through."
            )
        yield hop
        via = registry.get(hop.type).via
        reference = hop.data.get(via) if via else None
        if reference is None:
            return
        if reference in visited:
            raise ConnectionCycle(f"The connection {reference} runs over itself.")
        visited.add(reference)
        record = carriers.get(reference)
        if record is None:
            raise IntegrityError(
                f"The vault does not record that something runs over connection {reference}: restore the vault "
                "from a backup."
            )
        hop = Hop(record.type, record.data, "/".join(record.path), record.id)


def _sealed_secrets(registry: Registry, hop: Hop) -> list[Mapping[str, Any]]:
    secrets: list[Any] = []
    map_secrets(registry.schema(hop.type), hop.data, secrets.append)
    # A reference may have sealed secrets of its own, such as a token for a server.
    return [sealed for secret in secrets for sealed in sealed_secrets(secret)]


def _signer_of(registry: Registry, signers: Signers, hop: Hop) -> Signer | None:
    kind = registry.get(hop.type)
    name = kind.signer(hop.data) if isinstance(kind, ConnectionType) else None
    return None if name is None else signers.get(name)


def locked_connections(vault: Vault, registry: Registry, connections: Iterable[str], access: Access) -> set[str]:
    """Return the ``connections`` that ``access`` cannot open: their secrets, or the secrets of a hop, are locked."""
    locked, require = set(), vault.principals.requirement(access)
    for id, record in vault.connections.each(set(connections)).items():
        try:
            if isinstance(record, IntegrityError):
                raise record
            hops = list(hops_to(vault, registry, Target.stored(record)))
            sealed = [secret for hop in hops for secret in _sealed_secrets(registry, hop)]
            try:
                require(sealed)
            except SecretLocked:
                if access.lent() is None:
                    raise
                vault.principals.entitled(sealed, access, partial(no_loan_for, vault, [hop.id for hop in hops]))
        except (SecretLocked, IntegrityError):
            locked.add(id)
        except ConnmgrError:
            # This connection cannot be opened either, but unlocking a secret would not help.
            continue
    return locked


class ConnectionSecrets:
    """The plain secrets of connections and of their hops, and passwords for sudo, if the vault's own key opens them.

    Only their sealed forms are kept in memory, for :data:`FRESH_SECONDS`. Safe to use from several threads.
    """

    def __init__(self, vault: Vault, registry: Registry) -> None:
        self._vault, self._registry = vault, registry
        self._lock = threading.Lock()
        self._sealed: dict[str, tuple[float, Sequence[Mapping[str, Any]]]] = {}

    def of(self, connections: Iterable[str]) -> set[str]:
        """Return the secrets of ``connections``, except secrets that are sealed for vault users alone."""
        secrets: set[str] = set()
        for secret in self._sealed_of(set(connections)):
            with contextlib.suppress(SecretLocked, IntegrityError):
                secrets.add(self._vault.principals.unseal(secret, Access()))
        return secrets

    def _sealed_of(self, ids: set[str]) -> list[Mapping[str, Any]]:
        now = time.monotonic()
        with self._lock:
            fresh = {id: entry for id in ids if (entry := self._sealed.get(id)) and now - entry[0] <= FRESH_SECONDS}
        if stale := ids - fresh.keys():
            renewed = {id: (now, self._look_up(entry)) for id, entry in self._vault.connections.each(stale).items()}
            with self._lock:
                if len(self._sealed) + len(renewed) > MAX_REMEMBERED:
                    self._sealed = {}
                self._sealed |= renewed
            fresh |= renewed
        return [secret for _, sealed in fresh.values() for secret in sealed]

    def _look_up(self, record: Connection | IntegrityError) -> Sequence[Mapping[str, Any]]:
        # A connection that is broken, or that nothing can open, has no secret that a command's words could contain.
        rows: list[Mapping[str, Any]] = []
        if isinstance(record, IntegrityError):
            return rows
        with contextlib.suppress(ConnmgrError):
            hops = list(hops_to(self._vault, self._registry, Target.stored(record)))
            rows += [secret for hop in hops for secret in _sealed_secrets(self._registry, hop)]
        with contextlib.suppress(ConnmgrError):
            password = self._vault.connections.sudo_passwords.stored(record.id, record.category)
            rows += [] if password is None else [password.sealed]
        return rows


def route_hosts(vault: Vault, registry: Registry, connection: Connection) -> list[Dialled]:
    """Return the hosts that a connection would dial, in dialling order; raises as :func:`hops_to`.

    :raises connmgr.errors.OperationError: a file on which this depends, such as ssh_config, cannot be used.
    :raises connmgr.errors.UnknownType: no plugin offers the type of a link.
    """
    hosts: list[Dialled] = []
    for hop in reversed(list(hops_to(vault, registry, Target.stored(connection)))):
        kind = registry.get(hop.type)
        if isinstance(kind, ConnectionType):
            hosts += kind.dialled(map_secrets(registry.schema(hop.type), hop.data, lambda _: ""))
    return hosts


def leads_to_host(vault: Vault, registry: Registry, connection: Connection) -> bool:
    """Whether a connection leads to a host, and not to the machine of whichever daemon opens it.

    One that nobody can open counts as one that does: whoever tries is told why.
    """
    try:
        return bool(route_hosts(vault, registry, connection))
    except ConnmgrError:
        return True


def environment_of(vault: Vault, registry: Registry, target: Target, send_env: Sequence[str]) -> ClientEnvironment:
    """Return which variables of clients reach the programs on ``target``, always including ``send_env``.

    That depends on ``target`` and the connections that it runs *in*, down to the machine.
    :raises OperationError: a file that names variables, such as ssh_config, cannot be read or used.
    :raises ConnectionCycle | connmgr.errors.IntegrityError: as :func:`hops_to`.
    """
    inside: list[ClientEnvironment] = []
    for hop in hops_to(vault, registry, target):
        kind = registry.get(hop.type)
        inside.append(kind.client_environment(map_secrets(registry.schema(hop.type), hop.data, lambda _: "")))
        if not isinstance(kind, Wrapper):
            break
    environment = ClientEnvironment(tuple(send_env))
    for further in reversed(inside):
        environment = environment.then(further)
    return environment


def trust_host_key(vault: Vault, registry: Registry, connection: str, host: str, key: str, access: Access) -> None:
    """Accept ``key`` for ``host``; raise as :func:`forget_host_keys`, and HostKeyChanged if it has another key."""
    if not any(kind.trust_host_key(data, host, key) for kind, data in _key_owners(vault, registry, connection, access)):
        raise _no_host_with_keys(host)


def forget_host_keys(
    vault: Vault, registry: Registry, connection: str, host: str | None, access: Access
) -> Sequence[ForgottenKey]:
    """Remove the known keys of ``host``; by default, of the nearest host on the connection's chain that has known keys.

    :raises InvalidRequest: no link of the connection leads there, or a given key is malformed.
    :raises connmgr.errors.SecretLocked: ``access`` may not open the connection.
    """
    for kind, data in _key_owners(vault, registry, connection, access):
        forgotten = kind.forget_host_keys(data, host)
        if forgotten is not None:
            return forgotten
    raise _no_host_with_keys(host)


def _key_owners(
    vault: Vault, registry: Registry, connection: str, access: Access
) -> Iterator[tuple[ConnectionType, Mapping[str, Any]]]:
    """Yield the types and data, without secrets, of the hops that dial a host, the nearest to the connection first.

    Loans do not count: a token that only borrows a secret does not decide which host gets it.
    """
    hops = list(hops_to(vault, registry, Target.stored(vault.connections.get(connection))))
    vault.principals.require([secret for hop in hops for secret in _sealed_secrets(registry, hop)], access)
    for hop in hops:
        kind = registry.get(hop.type)
        if isinstance(kind, ConnectionType):
            yield kind, map_secrets(registry.schema(hop.type), hop.data, lambda _: None)


def _no_host_with_keys(host: str | None) -> InvalidRequest:
    if host is None:
        return InvalidRequest("connection: It does not lead to a host that has host keys.")
    return InvalidRequest("host: This connection does not lead to a host of that name that has host keys.")
