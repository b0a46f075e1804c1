"""Signers of SSH certificates: those that the vault keeps, and how a login gets a certificate from one.

A signer has a name, data of a kind that a plugin offers (:class:`connmgr.plugin.SshSigner`), and limits. Its secrets,
such as the private key of an authority of our own, are sealed as those of connections are. A certificate is for one
login: it is ordered with an entry of the audit log, whose number is in the certificate's key id.
"""

from __future__ import annotations

import base64
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from connmgr.contract.ca import MOST_SECONDS
from connmgr.errors import (
    AuditUnavailable,
    ConnmgrError,
    InvalidRequest,
    SignerExists,
    SignerRefused,
    SignerTimeout,
    SignerUnavailable,
    UnknownSigner,
)
from connmgr.fields import map_secrets
from connmgr.plugin import CertificateOrder, CertificateWish, Deadline, Schema, SignedCertificate
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.connection_rows import sealed_secrets
from connmgr.vault.documents import Document
from connmgr.vault.schema import now

DEFAULT_SECONDS = 300
BACKDATED_SECONDS = 300
"""A certificate is valid from so long ago, for hosts whose clocks are slow."""

SIGN_SECONDS = 10.0
"""Longest time that a signer gets for one certificate, whatever the login's own time is."""

AT_ONCE = 8
"""Certificates that one signer is asked for at the same time; other logins wait."""

MAX_SIGNERS = 100
MAX_REVOKED = 10_000

ISSUED = "certificate ordered"
"""The ``event`` of an audit log's entry about a certificate, whose key id has the number of the entry."""

_PLAIN = re.compile(r"[^A-Za-z0-9._@+-]")
_KEY_ID_CHARACTERS = 64
"""Longest name within a key id."""


@dataclass(frozen=True)
class Limit:
    """The limits of a signer's certificates, for all connections or for the connections of a category."""

    principals: tuple[str, ...] | None = None
    """The names that a certificate may have; None for the user who logs in, and for what the connection asks for."""

    seconds: int | None = None

    renew: bool | None = None
    """Whether a link takes nothing new once its certificate has expired."""

    def of(self, wish: CertificateWish, signer: str) -> tuple[tuple[str, ...], int]:
        """Return the principals and the seconds of the certificate for ``wish``.

        :raises SignerRefused: it asks for a principal that is not allowed.
        """
        most = self.seconds or DEFAULT_SECONDS
        seconds = most if wish.seconds is None else min(most, int(wish.seconds))
        if self.principals is None:
            return tuple(wish.principals) or (wish.user,), seconds
        beyond = [principal for principal in wish.principals if principal not in self.principals]
        if beyond:
            raise SignerRefused(
                f"The signer {signer} certifies {', '.join(self.principals)} here, and not {', '.join(beyond)}: change "
                "the connection's identity.certificate.principals, or the signer's limit (`connmgr ca limit`)."
            )
        # A name that is not a user's stands for several, by AuthorizedPrincipalsFile of sshd_config(5).
        return tuple(wish.principals) or ((wish.user,) if wish.user in self.principals else self.principals), seconds


@dataclass(frozen=True)
class Signer:
    """A stored signer."""

    name: str
    type: str
    data: Mapping[str, Any]
    """As its kind's schema loads it, with secrets sealed."""

    authorities: tuple[str, ...] = ()
    """The public keys that may have signed its certificates, the present one first; empty if they are unknown."""

    following: Mapping[str, Any] | None = None
    """The data of the authority that takes over when a rotation is finished."""

    limit: Limit = field(default_factory=Limit)
    places: Mapping[str, Limit] = field(default_factory=dict)
    """Limits for categories and what is below them, by their ids."""

    revoked: Mapping[str, str] = field(default_factory=dict)
    """When each serial number and key id was revoked."""

    @property
    def secrets(self) -> list[dict[str, Any]]:
        """The sealed secrets that a login with it needs."""
        return list(sealed_secrets(self.data))

    @classmethod
    def of(cls, document: Document) -> Signer:
        """Return the signer that a document of the vault describes."""
        body = document.body
        return cls(
            document.key,
            body["type"],
            body["data"],
            tuple(body["authorities"]),
            body["following"],
            _limit_of(body["limit"]),
            {id: _limit_of(limit) for id, limit in body["places"].items()},
            body["revoked"],
        )

    def body(self) -> dict[str, Any]:
        """Return what the vault stores of it beside its name."""
        return {
            "type": self.type,
            "data": dict(self.data),
            "authorities": list(self.authorities),
            "following": self.following,
            "limit": _limit_body(self.limit),
            "places": {id: _limit_body(limit) for id, limit in self.places.items()},
            "revoked": dict(self.revoked),
        }


def _limit_of(body: Mapping[str, Any]) -> Limit:
    principals = body["principals"]
    return Limit(None if principals is None else tuple(principals), body["seconds"], body.get("renew"))


def _limit_body(limit: Limit) -> dict[str, Any]:
    principals = None if limit.principals is None else list(limit.principals)
    return {"principals": principals, "seconds": limit.seconds, "renew": limit.renew}


class Note(Protocol):
    """Writes an entry to the audit log and returns its number; see :meth:`connmgr.audit.log.AuditLog.note`."""

    def __call__(self, facts: Mapping[str, Any], details: Mapping[str, Any]) -> int: ...


class Turns:
    """Lets some logins at once ask a signer, and gives its failure to all who waited meanwhile.

    Otherwise 500 logins would each wait for a signer that is down, one after the other.
    """

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._failed: tuple[float, ConnmgrError] | None = None

    @contextmanager
    def taken(self, name: str, began: float, deadline: Deadline) -> Iterator[None]:
        """Hold a turn for a login that ``began`` to want a certificate at a ``time.monotonic()``.

        :raises SignerUnavailable | SignerTimeout: no turn came in time, or the signer failed for others meanwhile.
        """
        if not self._free.acquire(timeout=deadline.left()):
            raise SignerTimeout(f"The signer {name} has not answered other logins in time, so this one was not tried.")
        try:
            # A failure from before this login began does not count: the signer may be back.
            if self._failed is not None and self._failed[0] > began:
                error = self._failed[1]
                # A copy, because several threads that raise one object would write into the same traceback.
                again = type(error)(error.message)
                again.for_tokens = error.for_tokens
                raise again
            yield
        except (SignerUnavailable, SignerTimeout) as error:
            self._failed = (time.monotonic(), error)
            raise
        finally:
            self._free.release()


class Signers:
    """The signers of a vault. Safe to use from several threads.

    Methods with a ``name`` raise :class:`UnknownSigner` if no signer has it.
    """

    def __init__(self, vault: Vault, registry: Registry, note: Note, *, must_note: bool = False) -> None:
        """``must_note``: no certificate is ordered while the audit log cannot be written."""
        self._vault, self._registry, self._note, self._must_note = vault, registry, note, must_note
        self._lock = threading.Lock()
        self._turns: dict[str, Turns] = {}

    def get(self, name: str) -> Signer:
        """Return the signer ``name``."""
        document = self._vault.signers.by_key(name)
        if document is None:
            raise UnknownSigner(name)
        return Signer.of(document)

    def all(self) -> list[Signer]:
        """Return all signers, by their names."""
        return sorted(map(Signer.of, self._vault.signers.all()), key=lambda signer: signer.name)

    def add(self, name: str, data: Mapping[str, Any], authority: str | None, limit: Limit, access: Access) -> Signer:
        """Store a signer with ``data`` of a kind, with secrets sealed or in plain, and return it.

        A kind that keeps its authority makes a new one, if ``data`` is its ``type`` alone.
        :raises SignerExists: another signer has the name.
        :raises InvalidRequest: there is no such kind, or there are too many signers.
        :raises connmgr.fields.ValidationError: the kind refuses the data.
        """
        kind = self._registry.signer(str(data.get("type")))
        fields = {member: value for member, value in data.items() if member != "type"}
        new = None if fields else kind.new_authority()
        if new is not None:
            fields, authority = dict(new[0]), new[1]
        sealed = self._sealed(kind.schema(), fields, access)
        signer = Signer(name, kind.name, sealed, (authority,) if authority else (), limit=limit)
        if not self._vault.signers.add(Document(key=name, body=signer.body()), most=MAX_SIGNERS):
            if self._vault.signers.by_key(name) is None:
                raise InvalidRequest(f"There are {MAX_SIGNERS} signers, as many as a vault may have: remove one first.")
            raise SignerExists(f"A signer {name} exists already.")
        return signer

    def limit(self, name: str, category: str | None, limit: Limit | None) -> Signer:
        """Set the limit of ``category`` and below, or of all connections without one; None removes it."""

        def limited(signer: Signer) -> Signer:
            if category is None:
                return replace(signer, limit=limit or Limit())
            others = {id: place for id, place in signer.places.items() if id != category}
            return replace(signer, places=others if limit is None else {**others, category: limit})

        return self._change(name, limited)

    def rotate(self, name: str, access: Access, *, finish: bool) -> Signer:
        """Begin to replace an authority of our own, or ``finish`` it.

        Between the two, certificates are signed by the present one, and hosts learn to trust both. A rotation that has
        begun is not begun again.
        :raises InvalidRequest: the key is kept elsewhere, or there is no rotation to finish.
        """
        signer = self.get(name)
        kind = self._registry.signer(signer.type)
        if finish:
            return self._change(name, _rotated)
        new = kind.new_authority()
        if new is None:
            raise InvalidRequest(f"The key of the signer {name} is kept elsewhere: replace it there.")
        following = self._sealed(kind.schema(), new[0], access)
        authority = new[1]
        return self._change(
            name,
            lambda signer: (
                signer
                if signer.following is not None
                else replace(signer, following=following, authorities=(*signer.authorities, authority))
            ),
        )

    def revoke(self, name: str, words: Sequence[str]) -> Signer:
        """Revoke certificates by serial number or key id; revocations of expired certificates leave the list.

        :raises InvalidRequest: too many are revoked.
        """
        moment = now()
        expired = (moment - timedelta(seconds=MOST_SECONDS + BACKDATED_SECONDS)).isoformat()

        def revoked(signer: Signer) -> Signer:
            still_revoked = {word: at for word, at in signer.revoked.items() if at > expired}
            after = {**still_revoked, **dict.fromkeys(words, moment.isoformat())}
            if len(after) > MAX_REVOKED:
                raise InvalidRequest(f"More than {MAX_REVOKED} certificates would be revoked: rotate the authority.")
            return replace(signer, revoked=after)

        return self._change(name, revoked)

    def remove(self, name: str) -> None:
        """Remove a signer with its keys; connections that name it cannot be opened then."""
        if self._vault.signers.by_key(name) is None:
            raise UnknownSigner(name)
        document = self._vault.signers.by_key(name)
        self._vault.signers.remove([document.id] if document else [])

    def certify(
        self,
        among: Iterable[Signer],
        wish: CertificateWish,
        timeout: float,
        *,
        connection: str | None,
        asking: Access,
        by: Access,
    ) -> SignedCertificate:
        """Order a certificate for a login to ``connection`` within ``timeout`` seconds; the answer is unchecked.

        The signer is one of ``among``. ``asking`` wants the certificate, and ``by`` opens the signer's secrets: the
        same, or a loan to it.
        :raises UnknownSigner | SignerRefused | SignerUnavailable | SignerTimeout: there is no certificate.
        :raises connmgr.errors.SecretLocked: ``by`` may not open the signer's secrets.
        :raises AuditUnavailable: a required audit log cannot be written.
        """
        began, deadline = time.monotonic(), Deadline(timeout)
        signer = next((signer for signer in among if signer.name == wish.signer), None)
        if signer is None:
            raise UnknownSigner(wish.signer)
        limit = self._limit_for(signer, connection)
        principals, seconds = limit.of(wish, signer.name)
        kind = self._registry.signer(signer.type)
        with self._lock:
            turns = self._turns.setdefault(signer.name, Turns())
        with turns.taken(signer.name, began, deadline):
            serial = secrets.randbits(63)
            number = self._noted(asking, connection, signer.name, principals, seconds, serial)
            # The time begins now, after the wait for a turn.
            moment = int(time.time())
            order = CertificateOrder(
                wish.public_key,
                _key_id(asking, number),
                serial,
                principals,
                moment - BACKDATED_SECONDS,
                moment + seconds,
                seconds,
                tuple(sorted(wish.extensions)),
            )
            plain = self._plain(kind.schema(), signer, deadline, by)
            try:
                text = kind.sign(plain, order, timeout=deadline.within(SIGN_SECONDS).left())
            except (SignerRefused, SignerTimeout, SignerUnavailable) as error:
                # It may name hosts and files that are the owner's business.
                error.for_tokens = (
                    f"The signer {signer.name} gives no certificate: ask the daemon's owner, who sees the reason."
                )
                raise
        return SignedCertificate(text, order, signer.name, signer.authorities, bool(limit.renew))

    def certify_host(
        self, name: str, key: str, names: Sequence[str], seconds: int, access: Access
    ) -> tuple[str, CertificateOrder]:
        """Certify the public ``key`` of a host for its ``names`` by an authority of our own; return the certificate.

        :raises InvalidRequest: the authority is elsewhere.
        :raises SignerRefused: the key is of no kind that can be certified.
        :raises connmgr.errors.SecretLocked: ``access`` may not open the authority's key.
        :raises AuditUnavailable: a required audit log cannot be written.
        """
        signer = self.get(name)
        kind = self._registry.signer(signer.type)
        if kind.new_authority() is None:
            raise InvalidRequest(f"The key of the signer {name} is kept elsewhere: sign keys of hosts there.")
        serial = secrets.randbits(63)
        number = self._noted(access, None, name, names, seconds, serial)
        moment = int(time.time())
        after, before = moment - BACKDATED_SECONDS, moment + seconds
        order = CertificateOrder(key, _key_id(access, number), serial, tuple(names), after, before, seconds, host=True)
        plain = self._plain(kind.schema(), signer, Deadline(SIGN_SECONDS), access)
        return kind.sign(plain, order, timeout=SIGN_SECONDS), order

    def _plain(self, schema: Schema, signer: Signer, deadline: Deadline, by: Access) -> dict[str, Any]:
        """Return the data of ``signer`` with its secrets in plain text."""
        sources, unseal = self._registry.sources, partial(self._vault.principals.unseal, access=by)
        return map_secrets(schema, signer.data, lambda secret: sources.plain(secret, deadline, unseal))

    def _limit_for(self, signer: Signer, connection: str | None) -> Limit:
        """Return the limit of the nearest category of ``connection`` upwards that has one, else the signer's own."""
        at: str | None = None
        if connection is not None and signer.places:
            at = self._vault.connections.get(connection).category
        while at is not None:
            if at in signer.places:
                nearest = signer.places[at]
                principals = signer.limit.principals if nearest.principals is None else nearest.principals
                renew = signer.limit.renew if nearest.renew is None else nearest.renew
                return Limit(principals, nearest.seconds or signer.limit.seconds, renew)
            at = self._vault.categories.infos([at])[0].parent
        return signer.limit

    def _noted(
        self,
        asking: Access,
        connection: str | None,
        signer: str,
        principals: Sequence[str],
        seconds: int,
        serial: int,
    ) -> int | None:
        facts = {**asking.who, "event": ISSUED, "connection": connection}
        details = {"signer": signer, "principals": list(principals), "seconds": seconds, "serial": str(serial)}
        try:
            return self._note(facts, details)
        except AuditUnavailable:
            if self._must_note:
                raise
            return None

    def _sealed(self, schema: Schema, data: Mapping[str, Any], access: Access) -> dict[str, Any]:
        """Return ``data`` as ``schema`` loads it, with its plain secrets sealed."""
        principals, sources = self._vault.principals, self._registry.sources
        seal = sources.inside(lambda s: principals.seal(s, access) if isinstance(s, str) else s)
        return map_secrets(schema, sources.loaded(schema, data), seal)

    def _change(self, name: str, change: Callable[[Signer], Signer]) -> Signer:
        document = self._vault.signers.by_key(name)
        if document is None:
            raise UnknownSigner(name)
        after = self._vault.signers.change(
            document.id, lambda document: replace(document, body=change(Signer.of(document)).body())
        )
        if after is None:
            raise UnknownSigner(name)
        return Signer.of(after)


def _rotated(signer: Signer) -> Signer:
    if signer.following is None:
        raise InvalidRequest(f"No rotation of the signer {signer.name} is under way; `connmgr ca rotate` begins one.")
    return replace(signer, data=signer.following, following=None, authorities=signer.authorities[1:])


def _key_id(asking: Access, number: int | None) -> str:
    """Return who asked and where the audit log says so, as one line in which no name can imitate another word."""
    who, user = asking.who, asking.principal
    words = {
        "entry": "none" if number is None else str(number),
        "caller": who.get("client", "connmgr"),
        "session": who.get("session"),
        "user": None if user is None else user.name,
        "token": who.get("tokenName"),
        "tokenId": who.get("token"),
    }
    words_shown = (f"{name}={_PLAIN.sub('_', value)[:_KEY_ID_CHARACTERS]}" for name, value in words.items() if value)
    return " ".join(["connmgr", *words_shown])


_SECTION_CERTIFICATES, _SERIALS, _KEY_IDS = 1, 0x20, 0x23


def revocation_list(signer: Signer, number: int) -> bytes:
    """Return the revoked certificates of ``signer`` for sshd's RevokedKeys, in the format of OpenSSH's PROTOCOL.krl.

    ``number`` is the list's version, larger than that of older ones.
    """
    serials = sorted(int(word) for word in signer.revoked if word.isdecimal())
    key_ids = sorted(word for word in signer.revoked if not word.isdecimal())
    parts = b""
    if serials:
        parts += bytes([_SERIALS]) + _string(b"".join(struct.pack(">Q", entry) for entry in serials))
    if key_ids:
        parts += bytes([_KEY_IDS]) + _string(b"".join(_string(entry.encode()) for entry in key_ids))
    head = b"SSHKRL\n\0" + struct.pack(">IQQQ", 1, number, int(time.time()), 0) + _string(b"") + _string(b"")
    return head + b"".join(_sections(signer.authorities, parts))


def _sections(authorities: Iterable[str], parts: bytes) -> Iterator[bytes]:
    for line in authorities if parts else ():
        authority = base64.b64decode(line.split()[1])
        yield bytes([_SECTION_CERTIFICATES]) + _string(_string(authority) + _string(b"") + parts)


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
