"""The bundled kinds of signers on the daemon's machine: an authority of connmgr's own, and a command.

A signer turns an order into a line of OpenSSH. ``certificates.py`` checks what each of them returns.
``signing_servers.py`` has those that are elsewhere.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from connmgr.errors import SignerRefused, SignerTimeout, SignerUnavailable
from connmgr.plugin import CertificateOrder, Deadline, Length, List, Schema, Secret, SshSigner, Text
from connmgr.plugin.outside import Unanswered, last_line, run_program

MAX_ANSWER_BYTES = 256 << 10


class AuthoritySchema(Schema):
    """The private key of an authority, which only the daemon has."""

    key = Secret(metadata={"description": "The private key; a new one is made without it."}, required=True)


class OwnAuthority(SshSigner):
    """An Ed25519 key that the vault seals; certificates are signed in the daemon."""

    name = "ca"
    description = "An authority of connmgr's own, whose key the vault keeps sealed."
    schema = AuthoritySchema

    def new_authority(self) -> tuple[Mapping[str, Any], str]:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        openssh, public = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
        key = ed25519.Ed25519PrivateKey.generate()
        text = key.private_bytes(openssh, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        line = key.public_key().public_bytes(public, serialization.PublicFormat.OpenSSH)
        return {"key": text.decode()}, line.decode()

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

        try:
            key = serialization.load_ssh_private_key(data["key"].encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # The library's message may quote the key.
            raise SignerUnavailable("The authority's private key is damaged, or encrypted: rotate it.") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            raise SignerUnavailable("The authority's private key is of an unsupported kind: rotate it.")
        try:
            subject: Any = serialization.load_ssh_public_key(order.public_key.encode())
        except (ValueError, UnsupportedAlgorithm):
            subject = None
        if not isinstance(subject, ed25519.Ed25519PublicKey | rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
            raise SignerRefused("The key to certify is damaged, or not of a supported kind: Ed25519, ECDSA or RSA.")
        kinds = serialization.SSHCertificateType
        builder = (
            serialization.SSHCertificateBuilder()
            .public_key(subject)
            .type(kinds.HOST if order.host else kinds.USER)
            .key_id(order.key_id.encode())
            .serial(order.serial)
            .valid_principals([name.encode() for name in order.principals])
            .valid_after(order.valid_after)
            .valid_before(order.valid_before)
        )
        for extension in order.extensions:
            builder = builder.add_extension(extension.encode(), b"")
        return builder.sign(key).public_bytes().decode()


class SigningCommandSchema(Schema):
    """A program of the daemon's machine."""

    argv = List(
        Text(validate=Length(1, 4096)),
        required=True,
        validate=Length(1, 64),
        metadata={
            "description": "The program and its words, which no shell reads. In a word {public} is the file of the key "
            "to sign, {keyId}, {serial}, {principals} (with commas) and {seconds} say what for; {{ is a brace. It "
            "prints the certificate, or writes it to a file beside {public}, as ssh-keygen -s does."
        },
    )


class SigningCommand(SshSigner):
    """A program that signs, such as ``ssh-keygen -s KEY -I {keyId} -n {principals} -V +{seconds}s {public}``."""

    name = "command"
    description = "A program on the daemon's machine, such as ssh-keygen -s or a script."
    schema = SigningCommandSchema

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        deadline = Deadline(timeout)
        if order.host:
            raise SignerRefused("A signing command certifies only users: sign the host's key where its authority is.")
        with tempfile.TemporaryDirectory(prefix="connmgr-sign-") as directory:
            public = Path(directory, "key.pub")
            public.write_text(order.public_key + "\n")
            words = {
                "public": str(public),
                "keyId": order.key_id,
                "serial": str(order.serial),
                "principals": ",".join(order.principals),
                "seconds": str(order.seconds),
            }
            printed = _run([_filled(word, words) for word in data["argv"]], directory, deadline)
            beside = public.with_name("key-cert.pub")
            with suppress(OSError):
                return beside.read_bytes()[:MAX_ANSWER_BYTES].decode(errors="replace")
            return printed.decode(errors="replace")


_PLACEHOLDER = re.compile(r"\{\{|\{(\w+)\}")


def _filled(word: str, words: Mapping[str, str]) -> str:
    """Return ``word`` with its placeholders filled in, in one pass: a name in a value is not a placeholder."""

    def fill(match: re.Match[str]) -> str:
        return "{" if match[1] is None else words.get(match[1], match[0])

    return _PLACEHOLDER.sub(fill, word)


def _run(argv: Sequence[str], directory: str, deadline: Deadline) -> bytes:
    """Return what the program prints; it has no terminal to ask at."""
    inherited = ("HOME", "LANG", "PATH", "SSH_AUTH_SOCK", "USER")
    environment = {name: os.environ[name] for name in inherited if name in os.environ}
    program = f"The signing program {Path(argv[0]).name}"
    try:
        printed = run_program(argv, deadline, environment=environment, limit=MAX_ANSWER_BYTES, directory=directory)
    except Unanswered as why:
        if why.late:
            raise SignerTimeout(f"{program} did not answer within {deadline.seconds:.0f} s.") from None
        raise SignerUnavailable(f"{program} fails: {why}.") from why.__cause__
    if printed.code:
        reason = last_line(printed.complaint) or "it said nothing"
        raise SignerRefused(f"{program} {printed.ending}: {reason}.")
    return printed.output
