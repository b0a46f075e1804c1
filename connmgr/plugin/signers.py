"""What signs the certificates of SSH logins, and what a login asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from connmgr.fields import Schema


@dataclass(frozen=True)
class CertificateWish:
    """The certificate that a login wants: a fresh public key, as a line of OpenSSH, and who logs in as ``user``.

    ``principals`` and ``seconds`` are what the connection asks for, if it does; the signer's limits have priority.
    """

    signer: str
    public_key: str
    user: str
    principals: Sequence[str] = ()
    seconds: float | None = None
    extensions: Sequence[str] = ()


@dataclass(frozen=True)
class CertificateOrder:
    """The certificate that a signer shall sign; times are seconds since 1970 (UTC)."""

    public_key: str
    """The key to certify, as a line of OpenSSH: type and base64."""

    key_id: str
    """What sshd writes to its log: printable ASCII that says who asked, and the number of the audit log's entry."""

    serial: int
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    seconds: int
    """The time from now to ``valid_before``; ``valid_after`` lies before now, for hosts whose clocks are slow."""

    extensions: tuple[str, ...] = ()
    """Such as ``permit-pty``, in alphabetical order."""

    host: bool = False
    """Whether it certifies the key of a host, whose names are the principals. Only a type with a :meth:`SshSigner.
    new_authority` is asked for that."""


@dataclass(frozen=True)
class SignedCertificate:
    """A signer's answer, which nobody has checked yet; what was ordered; and who may have signed it, if known."""

    text: str
    order: CertificateOrder
    signer: str
    authorities: Sequence[str] = ()
    """The public keys of the authority as lines of OpenSSH; empty if they are unknown."""

    renew: bool = False
    """Whether its link takes nothing new once it has expired; see :attr:`Transport.fresh_until`."""


class SshSigner(ABC):
    """A kind of signer: a schema for the data of one, and :meth:`sign`."""

    name: ClassVar[str]
    """The value of ``type`` in a signer's data."""

    description: ClassVar[str]
    """One sentence that helps a person choose."""

    schema: ClassVar[type[Schema]]
    """The fields besides ``type``."""

    @abstractmethod
    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        """Return the certificate for ``order``, as a line of OpenSSH.

        ``data`` are the fields that the schema has loaded, with each :class:`Secret` in plain text. Several threads may
        call it at once. Nothing of the answer is trusted: the login checks it.
        :raises connmgr.errors.SignerUnavailable: the signer cannot be reached, or fails.
        :raises connmgr.errors.SignerTimeout: it did not answer within ``timeout`` seconds.
        :raises connmgr.errors.SignerRefused: it answered, and does not sign this.
        """

    def new_authority(self) -> tuple[Mapping[str, Any], str] | None:
        """Return the data and the public key of a new authority, for a type that keeps the private key in its data.

        None, as by default, for signers whose key is elsewhere.
        """
        return None
