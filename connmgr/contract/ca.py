"""``/ca``: signers of SSH certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from connmgr.contract.common import EMPTY
from connmgr.contract.message import ID, SECRET, Length, Message, Pattern, Range, Wrong

LEAST_SECONDS, MOST_SECONDS = 30, 86_400
"""Bounds of the time for which a certificate may be valid."""

NAME = Pattern(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "Must have 1 to 64 letters, digits, hyphens, dots and underscores, and begin with a letter or digit.",
)
PRINCIPAL = Pattern(r"[^\s,]{1,255}", "Must be one word without a comma.")

Principals = Annotated[
    list[Annotated[str, PRINCIPAL]] | None,
    Length(1, 64),
    "The names that certificates may have. A login as one of them gets that name alone, another login gets all of "
    "them. Without it: the user who logs in, or what the connection asks for.",
]
Seconds = Annotated[
    int | None, Range(LEAST_SECONDS, MOST_SECONDS), "How long certificates may be used to log in; 300 without it."
]

Renew = Annotated[
    bool | None,
    "True: once its certificate has expired, a link takes nothing new, and what begins then logs in anew. False: it "
    "goes on as with OpenSSH. What has begun goes on either way.",
]
HOST_SECONDS = 90 * 86_400
LEAST_HOST_SECONDS, MOST_HOST_SECONDS = 60, 3660 * 86_400
"""Bounds of the time for which the certificate of a host may be valid."""


class CaNameRequest(Message):
    name: Annotated[str, NAME, "The signer's name."]


class CaInitRequest(CaNameRequest):
    data: Annotated[
        Mapping[str, Any],
        SECRET,
        "The signer: its `type` and the fields of that. `ca` is an authority of connmgr's own, whose key is made now; "
        "`command` runs the program `argv`; `vault` asks an ssh secrets engine of HashiCorp Vault or OpenBao, "
        "`step-ca` that program. Plugins may have more. Secrets are stored encrypted.",
    ] = EMPTY
    authority: Annotated[
        str | None,
        Length(1, 16_384),
        "The public key of a signer whose key is kept elsewhere, as a line of OpenSSH. Certificates of others are then "
        "refused. Not for the type `ca`.",
    ] = None
    principals: Principals = None
    seconds: Seconds = None
    renew: Renew = None


class CaInitResponse(Message):
    name: Annotated[str, "The signer's name."]
    authorities: Annotated[list[str], "Its public keys as lines of OpenSSH, for TrustedUserCAKeys; empty if unknown."]


class CaLimitRequest(CaNameRequest):
    category: Annotated[
        str | None, ID, "The category for which the limit is, with all below it. Without it: for all connections."
    ] = None
    principals: Principals = None
    seconds: Seconds = None
    renew: Renew = None
    remove: Annotated[bool, "True removes the limit."] = False

    def check(self) -> None:
        super().check()
        if self.remove and any(value is not None for value in (self.principals, self.seconds, self.renew)):
            raise Wrong("Not together with principals, seconds or renew.", "remove")


class CaLimit(Message):
    category: Annotated[str | None, "The id of the category; null for all connections."]
    principals: Annotated[list[str] | None, "The names that certificates may have; null for the user who logs in."]
    seconds: Annotated[int | None, "How long certificates may be used to log in; null for what the signer says."]
    renew: Annotated[
        bool | None,
        "Whether a link takes nothing new once its certificate has expired; null for what the signer says, or false.",
    ]


class CaInfo(Message):
    name: Annotated[str, "Its name."]
    type: Annotated[str, "Its type: `ca`, `command`, `vault`, `step-ca`, or one of a plugin."]
    authorities: Annotated[list[str], "Its public keys as lines of OpenSSH, the present one first; empty if unknown."]
    rotating: Annotated[bool, "Whether a rotation has begun: the last of its public keys takes over at the end."]
    limits: Annotated[Sequence[CaLimit], "What its certificates may be; the first is for all connections."]
    revoked: Annotated[int, "How many certificates are revoked."]


class CaQueryRequest(Message):
    name: Annotated[str | None, NAME, "Only the one of this name."] = None


class CaQueryResponse(Message):
    signers: Annotated[list[CaInfo], "By their names."]


class CaTrustResponse(Message):
    lines: Annotated[list[str], "For the file that TrustedUserCAKeys of sshd_config names."]
    revoked: Annotated[str, "For the file that RevokedKeys names: a key revocation list, in base64."]


class CaRotateRequest(CaNameRequest):
    finish: Annotated[
        bool,
        "False makes the next key, which hosts shall trust too. True signs by it from now on, without the one before.",
    ] = False


class CaRevokeRequest(CaNameRequest):
    certificates: Annotated[
        list[Annotated[str, Length(1, 1024)]],
        Length(1, 1000),
        "Serial numbers or whole key ids, as sshd's log and the audit log have them.",
    ]


class CaRevokeResponse(Message):
    revoked: Annotated[str, "The new key revocation list, in base64, for the file that RevokedKeys names."]


class CaHostRequest(CaNameRequest):
    key: Annotated[
        str,
        Length(1, 16_384),
        "The public key of the host as a line of OpenSSH, as in /etc/ssh/ssh_host_ed25519_key.pub.",
    ]
    names: Annotated[
        list[Annotated[str, PRINCIPAL]],
        Length(1, 64),
        "The names and addresses by which clients reach the host; others are not proven by it.",
    ]
    seconds: Annotated[
        int, Range(LEAST_HOST_SECONDS, MOST_HOST_SECONDS), "How long it is valid; 90 days without it."
    ] = HOST_SECONDS


class CaHostResponse(Message):
    certificate: Annotated[str, "The certificate as a line of OpenSSH, for the file that HostCertificate names."]
    serial: Annotated[str, "Its serial number."]
    expires: Annotated[datetime, "When it expires."]
