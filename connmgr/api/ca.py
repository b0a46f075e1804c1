"""``/ca``: signers of SSH certificates."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timezone

from connmgr import errors
from connmgr.api.body import describe
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.ca import (
    CaHostRequest,
    CaHostResponse,
    CaInfo,
    CaInitRequest,
    CaInitResponse,
    CaLimit,
    CaLimitRequest,
    CaNameRequest,
    CaQueryRequest,
    CaQueryResponse,
    CaRevokeRequest,
    CaRevokeResponse,
    CaRotateRequest,
    CaTrustResponse,
)
from connmgr.contract.message import message_of
from connmgr.errors import InvalidRequest
from connmgr.fields import ValidationError
from connmgr.signers import Limit, Signer, revocation_list

group = Group(
    "ca",
    "Signers of SSH certificates. A connection whose identity has a `certificate` with a `signer` logs in by a key "
    "that is made for the login, certified for minutes, and forgotten.",
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u"
CERTIFICATE = (
    "ssh-ed25519-cert-v01@openssh.com "
    "AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIBZ1vfrc0ucnTBiEPT6kdUjtsnFKJaVhrz0dY0zn07F0AAAA"
    "IBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6uAAAAAAAAEmcAAAACAAAAI2Nvbm5tZ3IgZW50cnk9MjE1IGNhbGxlcj1j"
    "b25ubWdyX2NhAAAAEAAAAAx3ZWIxLmV4YW1wbGUAAAAAaVc0eQAAAABpzdylAAAAAAAAAAAAAAAAAAAAMwAAAAtzc2gtZWQyNTUx"
    "OQAAACDEZEBTfsjIazNcmR+qgkixk2DZcFLbpUrfAucksiCoXgAAAFMAAAALc3NoLWVkMjU1MTkAAABAVpoGmsVE5b5xocFy+Hly"
    "a2Wa2W6CTHJ9aLpsP1d2j/MYWQResbb+tgMmegLnZykNj0sc6xG4W+kMfMG+eDiLCw=="
)
CATEGORY = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"
INFO = {
    "name": "team",
    "type": "ca",
    "authorities": [KEY],
    "rotating": False,
    "limits": [
        {"category": None, "principals": None, "seconds": 300, "renew": None},
        {"category": CATEGORY, "principals": ["deploy"], "seconds": 60, "renew": True},
    ],
    "revoked": 0,
}
LIST = "U1NIS1JMCgAAAAABAAAAAAAAAAAAAAAAaXyXnAAAAAAAAAAAAAAAAAAAAAA="


@group.endpoint(
    "/init",
    has_content=True,
    about=("name",),
    raises=[errors.SignerExists, errors.IntegrityError],
    example={"name": "team", "seconds": 300},
    answer={"name": "team", "authorities": [KEY]},
)
def init(request: CaInitRequest) -> CaInitResponse:
    """Store a signer. Without `data` it is an authority of connmgr's own, with a new Ed25519 key.

    The key is sealed as any secret: to the user that this session has unlocked, or else for all who may use the vault.
    Whoever may not open it cannot log in by its certificates.
    """
    data = dict(request.data) or {"type": "ca"}
    if not isinstance(data.get("type"), str):
        raise InvalidRequest("data.type: Missing data for required field.")
    if request.authority is not None:
        _require_key(request.authority, "authority")
        if data["type"] == "ca":
            raise InvalidRequest("authority: Leave this out: connmgr makes the key of its own authority itself.")
    principals = None if request.principals is None else tuple(request.principals)
    limit = Limit(principals, request.seconds, request.renew)
    authority = None if request.authority is None else " ".join(request.authority.split()[:2])
    try:
        signer = services().signers.add(request.name, data, authority, limit, caller().access)
    except ValidationError as error:
        messages = error.messages if isinstance(error.messages, dict) else {"": error.messages}
        raise InvalidRequest(describe(messages, "data")) from None
    detail(type=signer.type)
    return CaInitResponse(name=signer.name, authorities=list(signer.authorities))


def _require_key(line: str, field: str) -> None:
    try:
        kind, blob = line.split()[:2]
        whole = base64.b64decode(blob, validate=True)
    except (ValueError, binascii.Error):
        kind, whole = "", b""
    if not kind or whole[4 : 4 + len(kind)] != kind.encode():
        raise InvalidRequest(f"{field}: Not a public key as a line of OpenSSH: type and base64.")


@group.endpoint(
    "/query",
    reads=True,
    raises=[errors.UnknownSigner, errors.IntegrityError],
    example={},
    answer={"signers": [INFO]},
)
def query(request: CaQueryRequest) -> CaQueryResponse:
    """List signers, without their secrets."""
    signers = services().signers
    named = signers.all() if request.name is None else [signers.get(request.name)]
    return CaQueryResponse(signers=[_info(signer) for signer in named])


def _info(signer: Signer) -> CaInfo:
    sees, by = services().authorisation.visible_categories, caller()
    # Each by itself: one that was removed must not hide the others.
    limits = [(None, signer.limit), *((id, limit) for id, limit in signer.places.items() if sees(by, [id]))]
    return message_of(
        CaInfo,
        signer,
        authorities=list(signer.authorities),
        rotating=signer.following is not None,
        limits=[
            message_of(
                CaLimit,
                limit,
                category=category,
                principals=None if limit.principals is None else list(limit.principals),
            )
            for category, limit in limits
        ],
        revoked=len(signer.revoked),
    )


@group.endpoint(
    "/trust",
    about=("name",),
    reads=True,
    raises=[errors.UnknownSigner, errors.IntegrityError],
    example={"name": "team"},
    answer={"lines": [f"{KEY} connmgr-team"], "revoked": LIST},
)
def trust(request: CaNameRequest) -> CaTrustResponse:
    """Return what hosts need in order to trust a signer, and which of its certificates they shall refuse.

    While a rotation is under way there are two lines. A signer of which no public key is known has none.
    """
    return _trust(services().signers.get(request.name))


def _trust(signer: Signer) -> CaTrustResponse:
    lines = [f"{line} connmgr-{signer.name}" for line in signer.authorities]
    return CaTrustResponse(lines=lines, revoked=_revoked(signer))


def _revoked(signer: Signer) -> str:
    return base64.b64encode(revocation_list(signer, len(signer.revoked))).decode()


@group.endpoint(
    "/limit",
    about=("name", "category"),
    raises=[errors.UnknownSigner, errors.UnknownCategory, errors.IntegrityError],
    example={"name": "team", "category": CATEGORY, "principals": ["deploy"], "seconds": 60},
    answer=INFO,
)
def limit(request: CaLimitRequest) -> CaInfo:
    """Say what the certificates of a signer may be, for all connections or for a category and all below it.

    The nearest category upwards decides; what its limit leaves open, that for all connections says. Links that are
    open stay.
    """
    if request.category is not None:
        services().vault.categories.infos([request.category])
    principals = None if request.principals is None else tuple(request.principals)
    new = None if request.remove else Limit(principals, request.seconds, request.renew)
    detail(principals=request.principals, seconds=request.seconds, renew=request.renew)
    return _info(services().signers.limit(request.name, request.category, new))


@group.endpoint(
    "/rotate",
    about=("name",),
    raises=[errors.UnknownSigner, errors.IntegrityError],
    example={"name": "team"},
    answer={"lines": [f"{KEY} connmgr-team", f"{KEY} connmgr-team"], "revoked": LIST},
)
def rotate(request: CaRotateRequest) -> CaTrustResponse:
    """Replace the key of an authority of connmgr's own, in two steps.

    The first makes the next key, and returns both lines: put them on all hosts. The second, with `finish`, signs by the
    next key from then on, and returns its line alone. Links that are open stay.
    """
    detail(finish=request.finish)
    return _trust(services().signers.rotate(request.name, caller().access, finish=request.finish))


@group.endpoint(
    "/revoke",
    about=("name", "certificates"),
    raises=[errors.UnknownSigner, errors.IntegrityError],
    example={"name": "team", "certificates": ["4711"]},
    answer={"revoked": LIST},
)
def revoke(request: CaRevokeRequest) -> CaRevokeResponse:
    """Revoke certificates before they expire. Hosts refuse them once they have the list.

    Certificates that have expired leave the list. To revoke all, rotate the authority and take its old line from the
    hosts. Links that are open stay: close them, or end them on the host.
    """
    return CaRevokeResponse(revoked=_revoked(services().signers.revoke(request.name, request.certificates)))


@group.endpoint(
    "/host",
    about=("name", "names"),
    raises=[errors.UnknownSigner, errors.SignerRefused, errors.SecretLocked, errors.IntegrityError],
    example={"name": "hosts", "key": KEY, "names": ["web1.example"]},
    answer={"certificate": CERTIFICATE, "serial": "4711", "expires": "2026-04-02T03:04:05.000000Z"},
)
def host(request: CaHostRequest) -> CaHostResponse:
    """Certify the key of a host by an authority of connmgr's own, so that clients who trust the authority know it.

    Trust is a line `@cert-authority *.example KEY` of a known_hosts file, with a line of `/ca/trust`. The host shows
    the certificate when HostCertificate of its sshd_config names the file. The key id has the number of the audit log's
    entry, which says who asked.
    """
    _require_key(request.key, "key")
    key = " ".join(request.key.split()[:2])
    certificate, order = services().signers.certify_host(
        request.name, key, request.names, request.seconds, caller().access
    )
    detail(serial=str(order.serial), seconds=request.seconds)
    expires = datetime.fromtimestamp(order.valid_before, timezone.utc)
    return CaHostResponse(certificate=certificate, serial=str(order.serial), expires=expires)


@group.endpoint(
    "/remove",
    about=("name",),
    raises=[errors.UnknownSigner, errors.IntegrityError],
    example={"name": "team"},
)
def remove(request: CaNameRequest) -> None:
    """Remove a signer with its key. Connections that name it cannot be opened any more; links that are open stay."""
    services().signers.remove(request.name)
