"""Logging in by a certificate on demand: a key for this login alone, which one of the vault's signers certifies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from connmgr.errors import AuthFailed, CertificateExpired, CertificateInvalid
from connmgr.plugin import Asker, CertificateWish, SignedCertificate
from connmgr_ssh.keys import SIGNATURES, USER, Certificate, Identity, certified, fresh
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.login import UserAuthentication

TOLERATED_SECONDS = 60
"""A certificate may be valid for so much longer than ordered: signers round."""


def log_in_certified(
    login: UserAuthentication, on_demand: Mapping[str, Any], data: Mapping[str, Any], asker: Asker
) -> None:
    """Log in with a fresh key and its certificate; both are forgotten afterwards, however that ends.

    The certificate is ordered only now that the host has proven its key, so that it lives no longer than needed.
    :raises AuthFailed: the host accepts neither the certificate nor the connection's password.
    :raises CertificateInvalid | CertificateExpired: the certificate is not for this login.
    """
    signer = on_demand["signer"]
    key, line = fresh(f"a certificate by {signer}")
    extensions = ["permit-port-forwarding", "permit-pty"]
    if data.get("forwardAgent"):
        extensions.append("permit-agent-forwarding")
    wish = CertificateWish(
        signer, line, login.user, on_demand.get("principals", ()), on_demand.get("seconds"), extensions
    )
    signed = asker.certify(wish, login.deadline.left())
    identity, certificate = check(signed, key)
    if signed.renew:
        login.link.fresh_until = certificate.valid_before
    try:
        login.run([identity], data.get("password"))
    except (AuthFailed, TimeoutError) as error:
        if time.time() >= certificate.valid_before:
            raise CertificateExpired(
                f"The certificate by {signer} for {login.host} expired during the login, after "
                f"{signed.order.seconds} s: let it be valid for longer (`connmgr ca limit`)."
            ) from error
        if isinstance(error, AuthFailed):
            error.message += (
                f" The certificate by {signer} is for {', '.join(certificate.principals)}, valid until "
                f"{_clock(certificate.valid_before)} by this machine's clock. Does sshd there trust its authority "
                f"(TrustedUserCAKeys; `connmgr ca trust {signer}` prints the line), and is its clock right?"
            )
        raise


def check(signed: SignedCertificate, key: Identity) -> tuple[Identity, Certificate]:
    """Return ``key`` with its certificate, if the answer is what was ordered; nobody has looked at it before.

    :raises CertificateInvalid: it is not.
    :raises CertificateExpired: it is not valid at this time.
    """
    order, signer = signed.order, signed.signer
    try:
        identity = certified(key, signed.text.strip().encode())
        certificate = Certificate.parse(identity.public.blob)
    except (AuthFailed, ValueError):
        raise _invalid(signer, "it certifies another key than the login's, or is damaged") from None
    allowed = order.valid_before - order.valid_after + TOLERATED_SECONDS
    lifetime = certificate.valid_before - certificate.valid_after
    authorities = [HostKey.parse(" ".join(line.split()[:2])) for line in signed.authorities]
    if certificate.kind != USER:
        raise _invalid(signer, "it is not a user certificate")
    if not certificate.principals or set(certificate.principals) - set(order.principals):
        names = ", ".join(_printable(name) for name in certificate.principals) or "everybody"
        raise _invalid(signer, f"it is for {names}, and {', '.join(order.principals)} was ordered")
    if lifetime > allowed:
        raise _invalid(signer, f"it is valid for {_days(lifetime)}, and {order.seconds} s were ordered")
    if certificate.critical_options:
        option = _printable(certificate.critical_options[0])
        raise _invalid(signer, f"it has the option {option}, with which connmgr cannot work")
    if authorities and certificate.authority not in authorities:
        raise _invalid(signer, f"its authority is {certificate.authority.fingerprint}, which is not the signer's")
    if certificate.algorithm not in SIGNATURES or not certificate.is_signed():
        raise _invalid(signer, "its signature is wrong")
    moment = time.time()
    if certificate.valid_after > moment:
        raise CertificateExpired(
            f"The certificate by {signer} is valid only in {certificate.valid_after - moment:.0f} s: the clock of the "
            "signer is ahead of this machine's. Set both by NTP."
        )
    if certificate.valid_before <= moment:
        raise CertificateExpired(
            f"The certificate by {signer} expired {moment - certificate.valid_before:.0f} s ago: the clock of the "
            "signer is behind this machine's. Set both by NTP."
        )
    return identity, certificate


def _invalid(signer: str, why: str) -> CertificateInvalid:
    return CertificateInvalid(f"The answer of the signer {signer} is refused: {why}. Nothing was sent to the host.")


def _clock(moment: int) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(moment))


def _days(seconds: int) -> str:
    return f"{seconds} s" if seconds < 2 * 86_400 else f"{seconds // 86_400} days"


def _printable(name: str) -> str:
    return "".join(character for character in name if character.isprintable())[:64]
