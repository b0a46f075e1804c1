"""known_hosts files (sshd(8)): their lines, the keys that connmgr adds to its own, and those that it removes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connmgr.errors import ConnectTimeout, HostKeyUnknown, TransportUnsupported
from connmgr.plugin import Deadline
from connmgr_ssh.config import matches, read_local_file

_PATTERN_CHARACTERS = frozenset("*?!")
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

    @property
    def of_security_key(self) -> bool:
        """Whether its private key is in hardware that wants a touch for each signature (FIDO2; PROTOCOL.u2f)."""
        return self.type.startswith("sk-")

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """Return the key that ``type base64`` describes; a comment after it is ignored.

        :raises ValueError: the text is malformed.
        """
        fields = text.split()
        if len(fields) < 2:
            raise ValueError("Neither a key type and its base64, nor the SHA256:… fingerprint of a key.")
        try:
            blob = base64.b64decode(fields[1], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("The key is not valid base64.") from None
        length = int.from_bytes(blob[:4], "big")
        if blob[4 : 4 + length] != fields[0].encode(errors="replace"):
            raise ValueError("The type before the key is not the key's own type.")
        return cls(fields[0], blob)


@dataclass(frozen=True)
class KnownHostsLine:
    """One line: the hosts it names, and their key, their authority's key, or a revoked key."""

    marker: str
    """``""``, ``@cert-authority`` or ``@revoked``."""
    hosts: str
    key: HostKey
    file: Path
    line: int

    def names(self, name: str) -> bool:
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


def read_known_hosts(paths: Sequence[Path]) -> Iterator[KnownHostsLine]:
    """Yield the entries of the files that exist; malformed lines are skipped, as ssh does.

    :raises TransportUnsupported: a file exists and cannot be read. Skipping it might accept a revoked key.
    """
    for path in paths:
        try:
            text = read_local_file(path)[0].decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise TransportUnsupported(f"The known_hosts file {path.name} cannot be read: {error.strerror}.") from error
        for number, line in enumerate(text.splitlines(), 1):
            entry = parse_line(line, path, number)
            if entry:
                yield entry


def parse_line(line: str, file: Path, number: int) -> KnownHostsLine | None:
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
        return KnownHostsLine(marker, fields[0], HostKey.parse(fields[1]), file, number)
    except ValueError:
        return None


class AcceptedKeys:
    """connmgr's own known_hosts file: keys accepted on first sight. Safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # If two threads connect to a new host, only one may accept its key, and neither may lose the other's line.
        self._writing = threading.Lock()

    def accept(self, name: str, key: HostKey, deadline: Deadline) -> KnownHostsLine | None:
        """Store ``key`` for ``name`` and return None, or return an entry that another thread stored for ``name``.

        :raises HostKeyUnknown: it cannot be stored, or ``name`` would not mean this host alone in known_hosts.
        :raises ConnectTimeout: another thread wrote until the deadline.
        """
        if not means_itself(name):
            raise HostKeyUnknown(
                f"The key of {name}, {key.fingerprint}, is not known, and cannot be stored: in known_hosts that name "
                "would be a pattern, a list or a marker. Give the host a plain name, or set hostKey.",
                fingerprint=key.fingerprint,
                hostKey=str(key),
            )
        if self.path is None:
            raise HostKeyUnknown(
                f"The key of {name}, {key.fingerprint}, is not known, and there is no known_hosts file to store it in: "
                "set hostKey."
            )
        with self._alone(name, deadline):
            for entry in read_known_hosts([self.path]):
                if not entry.marker and entry.names(name):
                    return entry
            # Read again under the lock, and replaced as a whole: a crash leaves the old file or the new one.
            before = read_local_file(self.path)[0] if self.path.exists() else b""
            if before and not before.endswith(b"\n"):
                before += b"\n"
            _replace(self.path, before + f"{name} {key}\n".encode(), 0o600)
        return None

    def remove(self, name: str, entries: Sequence[KnownHostsLine], deadline: Deadline) -> list[str]:
        """Remove the lines of ``entries``; return why each one stays, or ``""``; raise ConnectTimeout."""
        with self._alone(name, deadline):
            refusals = {file: _without(file, entries) for file in {entry.file for entry in entries}}
        return [_why_kept(entry) or refusals[entry.file] for entry in entries]

    @contextmanager
    def _alone(self, name: str, deadline: Deadline) -> Iterator[None]:
        if not self._writing.acquire(timeout=deadline.left()):
            raise ConnectTimeout(f"The keys of {name} could not be written within {deadline.seconds:g} seconds.")
        try:
            yield
        finally:
            self._writing.release()


def _why_kept(entry: KnownHostsLine) -> str:
    # A hashed name ("|1|salt|hash") is of one host, whatever characters it has.
    if entry.hosts.startswith("|") or not _PATTERN_CHARACTERS & set(entry.hosts):
        return ""
    return "the line is a pattern that speaks of other hosts too"


def _without(file: Path, entries: Sequence[KnownHostsLine]) -> str:
    """Remove the lines of ``entries`` from ``file``; return why they stay, ``""`` if they are gone.

    As with ``ssh-keygen -R``, whole lines go, and FILE.old keeps the former content. Only the user's own files change.
    """
    removed = {(entry.hosts, entry.key) for entry in entries if entry.file == file and not _why_kept(entry)}
    if not removed:
        return ""
    # The target of a symbolic link is replaced, not the link.
    path = file.resolve()
    try:
        content, status = read_local_file(path)
        if status.st_uid != os.getuid():
            return "the file belongs to another user"
        lines = content.splitlines(keepends=True)
        entries_of_lines = [parse_line(line.decode(errors="replace"), file, 0) for line in lines]
        kept_lines = [
            line
            for line, entry in zip(lines, entries_of_lines, strict=True)
            if entry is None or entry.marker or (entry.hosts, entry.key) not in removed
        ]
        mode = stat.S_IMODE(status.st_mode)
        _replace(path.with_name(path.name + ".old"), content, mode)
        _replace(path, b"".join(kept_lines), mode)
    except OSError as error:
        return f"the file cannot be written: {error.strerror}"
    return ""


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace the content of ``path``, atomically and durably."""
    descriptor, temporary = tempfile.mkstemp(prefix=".known_hosts.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
