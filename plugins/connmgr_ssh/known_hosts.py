"""Lines of known_hosts files, in the format of sshd(8)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from connmgr.errors import TransportUnsupported
from connmgr_ssh import local_file
from connmgr_ssh.config_file import matches

# A single name: no pattern, list, comment, marker, hashed name or negation.
_PLAIN = re.compile(r"[^\s*?,#@|!][^\s*?,]*")


@dataclass(frozen=True)
class HostKey:
    """A public key: its type, as ``ssh-ed25519``, and its encoding in the SSH protocol."""

    type: str
    blob: bytes

    def __str__(self) -> str:
        return f"{self.type} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """The SHA-256 fingerprint as OpenSSH prints it."""
        digest = hashlib.sha256(self.blob).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """Return the key that ``type base64`` describes; a comment after it is ignored.

        :raises ValueError: the text is malformed.
        """
        fields = text.split()
        if len(fields) < 2:
            raise ValueError("Neither a key type and its base64, nor SHA256:… of a key.")
        try:
            blob = base64.b64decode(fields[1], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("The key is not valid base64.") from None
        length = int.from_bytes(blob[:4], "big")
        if blob[4 : 4 + length] != fields[0].encode(errors="replace"):
            raise ValueError("The key is not of the type that stands before it.")
        return cls(fields[0], blob)


@dataclass(frozen=True)
class Entry:
    """One line: the hosts it names, and their key, their authority's key, or a revoked key."""

    marker: str
    """``""``, ``@cert-authority`` or ``@revoked``."""
    hosts: str
    key: HostKey
    file: Path
    line: int

    def speaks_of(self, name: str) -> bool:
        """Whether the line names ``name``, in the form of :func:`host_name`."""
        if not self.hosts.startswith("|1|"):
            return matches(self.hosts.split(","), name)
        try:
            salt, expected = (base64.b64decode(part, validate=True) for part in self.hosts[3:].split("|"))
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.digest(salt, name.lower().encode(), "sha1"), expected)


def host_name(host: str, port: int) -> str:
    """Return the name of a host at a port in known_hosts files."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def means_itself(name: str) -> bool:
    """Whether a line that begins with ``name`` names that host and no other."""
    return _PLAIN.fullmatch(name) is not None


def read(paths: Sequence[Path]) -> Iterator[Entry]:
    """Yield the entries of the files that exist; malformed lines are skipped, as ssh does.

    :raises TransportUnsupported: a file exists and cannot be read. Skipping it might accept a revoked key.
    """
    for path in paths:
        try:
            text = local_file.read(path)[0].decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise TransportUnsupported(f"The known_hosts file {path.name} cannot be read: {error.strerror}.") from error
        for number, line in enumerate(text.splitlines(), 1):
            entry = parse_line(line, path, number)
            if entry:
                yield entry


def parse_line(line: str, file: Path, number: int) -> Entry | None:
    """Return the entry of a line of ``file``, None if it is a comment or malformed."""
    fields = line.split(None, 1)
    if not fields or fields[0].startswith("#"):
        return None
    marker = ""
    if fields[0].startswith("@"):
        marker = fields[0]
        fields = fields[1].split(None, 1) if len(fields) == 2 else []
    if len(fields) != 2 or marker not in ("", "@cert-authority", "@revoked"):
        return None
    try:
        return Entry(marker, fields[0], HostKey.parse(fields[1]), file, number)
    except ValueError:
        return None
