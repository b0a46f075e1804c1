"""Decides about a host's key: known, certified, pinned, new, changed or revoked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from connmgr.errors import HostKeyChanged, HostKeyUnknown
from connmgr.plugin import Deadline, ForgottenKey
from connmgr_ssh.config import Destination, shown
from connmgr_ssh.known_hosts import AcceptedKeys, HostKey, KnownHostsLine, host_name, read_known_hosts

STRICT, ACCEPT_NEW = "strict", "acceptNew"
"""The values of ``hostKeyChecking``."""

_FINGERPRINT = "SHA256:"


@dataclass(frozen=True)
class Pin:
    """The one key that a connection accepts, given whole or by its fingerprint."""

    key: HostKey | None
    fingerprint: str

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Return the pin that ``type base64`` or ``SHA256:…`` describes.

        :raises ValueError: the text is neither.
        """
        text = text.strip()
        if not text.startswith(_FINGERPRINT):
            key = HostKey.parse(text)
            return cls(key, key.fingerprint)
        if len(text) != len(_FINGERPRINT) + 43:
            raise ValueError("A SHA256 fingerprint has 43 characters after SHA256:.")
        return cls(None, text)


class HostKeyVerifier:
    """Accepts or refuses the keys of one destination, by known_hosts files, a pin and ``hostKeyChecking``."""

    def __init__(self, destination: Destination, accepted: AcceptedKeys, pin: str | None, checking: str | None) -> None:
        """``checking`` is the connection's ``hostKeyChecking``; if None, ``~/.ssh/config`` decides about new keys."""
        alias = destination.host_key_alias
        self.name = alias.lower() if alias else host_name(destination.host, destination.port)
        self._destination = destination
        self._accepted = accepted
        self._pin = Pin.parse(pin) if pin else None
        self._accept_new = checking == ACCEPT_NEW if checking else destination.accept_new
        own = [accepted.path] if accepted.path else []
        entries = [entry for entry in read_known_hosts([*destination.known_hosts, *own]) if entry.names(self.name)]
        self._revoked = _marked(entries, "@revoked")
        self._authorities = _marked(entries, "@cert-authority")
        self._known_keys = _marked(entries, "")

    @property
    def preferred_types(self) -> list[str]:
        """The key types to ask the host for, because they can be verified."""
        if self._pin:
            return [self._pin.key.type] if self._pin.key else []
        return [entry.key.type for entry in self._known_keys]

    @property
    def verifies_certificates(self) -> bool:
        """Whether a host certificate can be verified: an authority is trusted for this host, and no key is pinned."""
        return bool(self._authorities) and self._pin is None

    def check(self, blob: bytes, certificate: bytes | None, deadline: Deadline) -> None:
        """Accept or refuse the key that the host has proved to hold, and the ``certificate`` with it.

        :raises HostKeyChanged: it is revoked, or another key is pinned or known.
        :raises HostKeyUnknown: the host is unknown, and new keys are not accepted.
        """
        key = HostKey(_type_of(blob), blob)
        # First: a key that was revoked is refused even where it is pinned, or certified.
        self._refuse_revoked(key)
        if self._pin:
            self._compare(key, self._pin)
            return
        reason = self._why_not_certified(certificate) if certificate else None
        # As with ssh, a certificate by a trusted authority needs no known key, so hosts may change theirs; and a host
        # whose certificate is not accepted, perhaps because it has expired, is still known by its key.
        if (certificate and not reason) or key in _keys(self._known_keys):
            return
        if self._known_keys:
            raise self._changed(key, self._known_keys)
        if not self._accept_new:
            raise self._unknown(key, reason)
        # Two logins may meet an unknown host at once. The file decides which key came first, under its lock.
        earlier = self._accepted.accept(self.name, key, deadline)
        if earlier is not None and earlier.key != key:
            raise self._changed(key, [earlier])

    def _refuse_revoked(self, key: HostKey) -> None:
        for entry in self._revoked:
            if entry.key == key:
                raise HostKeyChanged(
                    f"The key of {self.name} is marked as revoked in {self._location(entry)}: "
                    f"{key.type} {key.fingerprint}. Nothing was sent to the host.",
                    fingerprint=key.fingerprint,
                )

    def _compare(self, key: HostKey, pin: Pin) -> None:
        if pin.fingerprint != key.fingerprint:
            raise HostKeyChanged(
                f"The key of {self.name} is not the one that the connection's hostKey names: "
                f"expected {pin.fingerprint}, got {key.type} {key.fingerprint}. Nothing was sent to the host. If its "
                f"administrator confirms the new key, `connmgr edit NAME hostKey={key.fingerprint}` has it accepted.",
                fingerprint=key.fingerprint,
            )

    def _why_not_certified(self, certificate: bytes) -> str | None:
        # Importing paramiko takes longer than all the rest of this module.
        from connmgr_ssh.keys import refusal

        principal = self._destination.host_key_alias or self._destination.host
        return refusal(certificate, principal, _keys(self._authorities), _keys(self._revoked))

    def _changed(self, key: HostKey, lines: Sequence[KnownHostsLine]) -> HostKeyChanged:
        olds = ", ".join(f"{old.key.type} {old.key.fingerprint} ({self._location(old)})" for old in lines)
        return HostKeyChanged(
            f"The key of {self.name} has changed: known is {olds}, got {key.type} {key.fingerprint}. "
            "Someone may be listening in, or the host was set up anew: compare the fingerprint with its administrator, "
            "then have the old key forgotten, or set hostKey. Nothing was sent to the host.",
            **self._details(key),
        )

    def _details(self, key: HostKey) -> dict[str, str]:
        return {"host": self.name, "fingerprint": key.fingerprint, "hostKey": str(key)}

    def forget(self, deadline: Deadline) -> list[ForgottenKey]:
        """Remove the host's known keys from their files, and return them."""
        reasons = self._accepted.remove(self.name, self._known_keys, deadline)
        return [
            ForgottenKey(f"{entry.key.type} {entry.key.fingerprint}", self._location(entry), reason)
            for entry, reason in zip(self._known_keys, reasons, strict=True)
        ]

    def _location(self, entry: KnownHostsLine) -> str:
        """Return file and line of ``entry`` for clients, without the path of the data directory."""
        own = entry.file == self._accepted.path
        return f"{'known_hosts in the data directory of connmgr' if own else shown(entry.file)}, line {entry.line}"

    def _unknown(self, key: HostKey, reason: str | None) -> HostKeyUnknown:
        certified = f" Its certificate is not accepted: {reason}." if reason else ""
        scan = f"ssh-keyscan -p {self._destination.port} {self._destination.host}"
        files = [shown(path) for path in self._destination.known_hosts if str(path) != os.devnull]
        added = f", or add the key to {files[0]} ({scan})" if files else ""
        return HostKeyUnknown(
            f"The key of {self.name} is not known: {key.type} {key.fingerprint}.{certified} Compare the fingerprint "
            f'with the host\'s administrator, then have it trusted, set hostKey to "{key}", or hostKeyChecking to '
            f'"acceptNew"{added}.',
            **self._details(key),
        )


def _marked(entries: Sequence[KnownHostsLine], marker: str) -> list[KnownHostsLine]:
    return [entry for entry in entries if entry.marker == marker]


def _keys(entries: Sequence[KnownHostsLine]) -> list[HostKey]:
    return [entry.key for entry in entries]


def _type_of(blob: bytes) -> str:
    return blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", errors="replace")
