"""The vault's key, and its stores: a file, a file that systemd-creds encrypts, or the keyring of the system."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hmac
import os
import stat
import subprocess
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from connmgr.errors import StartupError
from connmgr.paths import CREATE

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

KEY_BYTES = 32

# Personalisation strings of BLAKE2b, at most 16 bytes; keys for different uses must differ.
_RECORDS = b"connmgr.records"
_VERIFIER = b"connmgr.verifier"
_WRAPPING = b"connmgr.wrapping"
_PRINCIPALS = b"connmgr.principl"
_AUDIT = b"connmgr.audit"

_SERVICE = "connmgr"


def load(path: Path, *, create: bool, verifier: bytes | None = None) -> VaultKey:
    """Return the key in the file ``path``; see :func:`load_from`."""
    return load_from(KeyFile(path), create=create, verifier=verifier)


def load_from(store: KeyStore, *, create: bool, verifier: bytes | None = None) -> VaultKey:
    """Return the key in ``store``, and finish an interrupted rotation.

    ``create`` allows a new key, for an empty vault. Of the keys in the store, the one that matches the vault's
    ``verifier`` (:meth:`VaultKey.verifier`) is kept.
    :raises StartupError: no key, the wrong key, or a store in a bad state; nothing was changed.
    """
    current, following = store.read(), store.read_next()
    if verifier is not None:
        return _recognised(store, current, following, verifier)
    if current is not None:
        if following is not None and not create:
            raise StartupError(
                "A rotation of the vault's key was interrupted, and only the vault can tell which key is its own."
            )
        return current
    if not create:
        raise _misses(store)
    store.discard_next()
    key = VaultKey.generate()
    store.write_next(key)
    store.promote()
    return key


def _recognised(store: KeyStore, current: VaultKey | None, following: VaultKey | None, verifier: bytes) -> VaultKey:
    # A rotation writes the next key, commits what is sealed by it together with its verifier, and then promotes it. So
    # after a crash the verifier says on which side of the commit that was, and which of the two keys opens the vault.
    if current is not None and current.matches(verifier):
        store.discard_next()
        return current
    if following is not None and following.matches(verifier):
        store.promote()
        return following
    if current is None:
        raise _misses(store)
    raise StartupError(
        f"The key in {store.place} is not the one that this vault was made with: put back the key that belongs to it."
    )


def _misses(store: KeyStore) -> StartupError:
    return StartupError(
        f"The vault's key is missing from {store.place}, and the vault is not empty: put back the key that belongs to "
        "it. A daemon that shares the vault of another has a copy of that one's key."
    )


def move(source: KeyStore, target: KeyStore, verifier: bytes) -> None:
    """Move the key that a vault recognises by its ``verifier`` from one store to another.

    An interruption leaves it in both, and another call finishes the move.
    :raises StartupError: the key is not in ``source``, ``target`` has another one, or one of them cannot be used.
    """
    key = load_from(source, create=False, verifier=verifier)
    there = target.read()
    if there is None:
        target.discard_next()
        target.write_next(key)
        target.promote()
    elif not there.matches(verifier):
        raise StartupError("The vault's key was not moved: another vault's key is in that place. Remove it first.")
    # What was written is read before the other one goes.
    load_from(target, create=False, verifier=verifier)
    source.remove()


class VaultKey:
    """The key of a vault: 32 random bytes, used only to derive keys.

    Each derived key is the keyed BLAKE2b-256 of the empty string, with a personalisation string of its own.
    """

    __slots__ = ("_audit", "_principals", "_raw", "_records", "wrapping")

    def __init__(self, raw: bytes) -> None:
        """Take the key's 32 bytes.

        :raises ValueError: ``raw`` has another length.
        """
        if len(raw) != KEY_BYTES:
            raise ValueError(f"a vault key has {KEY_BYTES} bytes")
        self._raw = raw
        self._records = self._derive(_RECORDS)
        self._principals = self._derive(_PRINCIPALS)
        self._audit = self._derive(_AUDIT)
        self.wrapping = self._derive(_WRAPPING)
        """The 32-byte key that wraps the private key of the principal ``vault``."""

    @classmethod
    def generate(cls) -> VaultKey:
        """Make a fresh key from the system's random source."""
        return cls(os.urandom(KEY_BYTES))

    def _derive(self, purpose: bytes) -> bytes:
        return blake2b(key=self._raw, person=purpose, digest_size=KEY_BYTES).digest()

    def mac(self, message: bytes) -> bytes:
        """Return the 32-byte authentication code of a stored record."""
        return blake2b(message, key=self._records, digest_size=32).digest()

    def principal_mac(self, message: bytes) -> bytes:
        """Return the 32-byte authentication code of a principal's row, or of the set of all principals."""
        return blake2b(message, key=self._principals, digest_size=32).digest()

    def audit_mac(self, message: bytes) -> bytes:
        """Return the 32-byte code that replaces a command's text in the audit log."""
        return blake2b(message, key=self._audit, digest_size=32).digest()

    def verifier(self) -> bytes:
        """Return 32 bytes by which the vault recognises its key; they reveal nothing of the key."""
        return self._derive(_VERIFIER)

    def matches(self, verifier: bytes) -> bool:
        """Whether ``verifier`` is this key's, compared in constant time."""
        return hmac.compare_digest(self.verifier(), verifier)

    def exposed(self) -> bytes:
        """Return the key itself; only a :class:`KeyStore` may call this."""
        return self._raw

    def __repr__(self) -> str:
        return "<VaultKey>"


class KeyStore(Protocol):
    """Keeps a vault's key and, during a rotation, the next one.

    Every method raises :class:`connmgr.errors.StartupError` when the store is in a bad state.
    """

    @property
    def place(self) -> str:
        """Where the key is, in words for a person."""

    def read(self) -> VaultKey | None:
        """Return the key, or None."""

    def read_next(self) -> VaultKey | None:
        """Return the next key, which a rotation has written, or None."""

    def write_next(self, key: VaultKey) -> None:
        """Store the next key, durably, beside the current one."""

    def promote(self) -> None:
        """Make the next key the current one, atomically and durably."""

    def discard_next(self) -> None:
        """Remove the next key, if there is one."""

    def remove(self) -> None:
        """Remove the key, which another store has by now."""


class KeyFile:
    """Keeps the key in a file: 32 bytes, mode 0600, in a directory of mode 0700; the next key in ``<name>.next``."""

    most_bytes = KEY_BYTES
    """Most bytes of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = path.name + ".next"

    @property
    def place(self) -> str:
        return str(self.path)

    def opened(self, content: bytes) -> VaultKey | None:
        """Return the key in the ``content`` of the file, or None if it is damaged."""
        return VaultKey(content) if len(content) == KEY_BYTES else None

    def sealed(self, key: VaultKey) -> bytes:
        """Return the content of the file for ``key``."""
        return key.exposed()

    def read(self) -> VaultKey | None:
        content = self._read(self.path.name)
        if content is None:
            return None
        key = self.opened(content)
        if key is None:
            raise StartupError(f"The key file {self.path} is damaged: it must hold {KEY_BYTES} bytes.")
        return key

    def read_next(self) -> VaultKey | None:
        # A process killed while writing leaves a shorter file, which no vault has used.
        content = self._read(self._next)
        return None if content is None else self.opened(content)

    def remove(self) -> None:
        with self._directory() as directory:
            try:
                os.unlink(self.path.name, dir_fd=directory)
                os.fsync(directory)
            except OSError as error:
                why = f"Cannot remove the key file {self._name(self.path.name)}: {error.strerror}."
                raise StartupError(f"{why} The key is in both places; repeat the command.") from error

    def write_next(self, key: VaultKey) -> None:
        content = self.sealed(key)
        with self._directory() as directory:
            try:
                descriptor = os.open(self._next, CREATE, 0o600, dir_fd=directory)
            except OSError as error:
                raise StartupError(f"Cannot create the key file {self._name(self._next)}: {error.strerror}.") from error
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    file.write(content)
                    os.fsync(descriptor)
                # The name is durable only with its directory (fsync(2)).
                os.fsync(directory)
            except OSError as error:
                os.unlink(self._next, dir_fd=directory)
                raise StartupError(f"Cannot write the key file {self._name(self._next)}: {error.strerror}.") from error

    def promote(self) -> None:
        # rename(2) is atomic: after a crash the old or the new key is there, and never a part of one. Which of them the
        # vault has accepted says its verifier (_recognised).
        with self._directory() as directory:
            os.rename(self._next, self.path.name, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)

    def discard_next(self) -> None:
        with self._directory() as directory, contextlib.suppress(FileNotFoundError):
            os.unlink(self._next, dir_fd=directory)
            os.fsync(directory)

    def _name(self, name: str) -> str:
        return str(self.path.with_name(name))

    @contextlib.contextmanager
    def _directory(self) -> Iterator[int]:
        where = self.path.parent
        try:
            descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StartupError(f"Cannot open the key's directory {where}: {error.strerror}.") from error
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise StartupError(f"The key's directory {where} belongs to another user; use one of your own.")
            if status.st_mode & 0o077:
                raise StartupError(f"The key's directory {where} is open to others: run chmod 700 {where}")
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> bytes | None:
        # O_NONBLOCK, so that a FIFO is refused instead of waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._directory() as directory:
            try:
                descriptor = os.open(name, flags, dir_fd=directory)
            except FileNotFoundError:
                return None
            except OSError as error:
                link = error.errno == errno.ELOOP
                reason = "it is a symbolic link, which is refused" if link else error.strerror
                raise StartupError(f"Cannot read the key file {self._name(name)}: {reason}.") from error
            try:
                # By the descriptor: the name may lead to another file by now.
                self._check(name, os.fstat(descriptor))
                # One byte more than a key file has, so that a longer file is refused instead of cut to a key.
                return os.read(descriptor, self.most_bytes + 1)
            finally:
                os.close(descriptor)

    def _check(self, name: str, status: os.stat_result) -> None:
        path = self._name(name)
        if not stat.S_ISREG(status.st_mode):
            raise StartupError(f"The key file {path} is not a regular file.")
        if status.st_uid != os.geteuid():
            raise StartupError(f"The key file {path} belongs to another user; it must be yours alone.")
        if status.st_mode & 0o177:
            raise StartupError(f"The key file {path} is open to others: run chmod 600 {path}")


class EncryptedKeyFile(KeyFile):
    """Keeps the key in a file as :class:`KeyFile` does, encrypted by ``systemd-creds`` with the keys of this machine.

    That is the key in the machine's TPM if it has one, and a file that only root reads. So the key file alone, in a
    backup or on a stolen disk, opens nothing. Users other than root need systemd 256.
    """

    most_bytes = 4096

    def opened(self, content: bytes) -> VaultKey | None:
        raw = _systemd_creds("decrypt", content)
        return VaultKey(raw) if len(raw) == KEY_BYTES else None

    def sealed(self, key: VaultKey) -> bytes:
        return _systemd_creds("encrypt", key.exposed())

    def read_next(self) -> VaultKey | None:
        try:
            return super().read_next()
        except StartupError:
            # Shorter, as above: if it is not, the current key, which fails alike, says why.
            return None


_CREDENTIAL = "connmgr-vault-key"
"""The name that is encrypted with the key: another credential of the machine does not pass for it."""

CREDS_SECONDS = 60.0
"""A TPM may take seconds, and another program may have it."""


def _systemd_creds(action: str, content: bytes) -> bytes:
    """Return ``content`` encrypted or decrypted; it is in no argv and no file meanwhile."""
    mode = [] if os.geteuid() == 0 else ["--user"]
    argv = ["systemd-creds", *mode, f"--name={_CREDENTIAL}", action, "-", "-"]
    try:
        done = subprocess.run(argv, input=content, capture_output=True, timeout=CREDS_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "it does not answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        # Without its cause: TimeoutExpired has the output until then, which may be the key.
        raise StartupError(f"The setting key-store is systemd-creds, which cannot be used: {reason}.") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = "".join(character for character in (lines or ["it said nothing"])[-1] if character.isprintable())
        user = "" if os.geteuid() == 0 else " Users other than root need systemd 256 or newer."
        raise StartupError(f"systemd-creds cannot {action} the vault's key: {reason.rstrip('.')}.{user}")
    return done.stdout


class Keyring:
    """Keeps the key in the entry ``connmgr`` of the keyring, under the path of the vault's data directory."""

    def __init__(self, data_dir: Path, backend: KeyringBackend | None = None) -> None:
        """Use ``backend``, or the system's preferred one; raise :class:`StartupError` if there is none."""
        self._entry = str(data_dir.absolute())
        self._backend = backend or _system_backend()

    @property
    def place(self) -> str:
        return f"the entry {self._entry} of the keyring"

    def read(self) -> VaultKey | None:
        return self._read(self._entry)

    def read_next(self) -> VaultKey | None:
        return self._read(self._next)

    def write_next(self, key: VaultKey) -> None:
        self._write(self._next, key)

    def promote(self) -> None:
        # A keyring cannot rename. After an interruption here both entries hold the same key, and `load_from` removes
        # the next one.
        key = self.read_next()
        if key is None:
            raise StartupError("The keyring has lost the new key that the rotation stored in it.")
        self._write(self._entry, key)
        self.discard_next()

    def discard_next(self) -> None:
        from keyring.errors import PasswordDeleteError

        try:
            self._backend.delete_password(_SERVICE, self._next)
        except PasswordDeleteError:
            return
        except Exception as error:
            raise _unusable(error) from error

    def remove(self) -> None:
        try:
            self._backend.delete_password(_SERVICE, self._entry)
        except Exception as error:
            raise _unusable(error) from error

    @property
    def _next(self) -> str:
        return self._entry + " (next)"

    def _read(self, entry: str) -> VaultKey | None:
        try:
            text = self._backend.get_password(_SERVICE, entry)
        except Exception as error:
            raise _unusable(error) from error
        if text is None:
            return None
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise StartupError(f"The keyring's entry {_SERVICE!r} for {entry} does not hold a vault key.")
        return VaultKey(raw)

    def _write(self, entry: str, key: VaultKey) -> None:
        try:
            self._backend.set_password(_SERVICE, entry, base64.b64encode(key.exposed()).decode())
        except Exception as error:
            raise _unusable(error) from error


def _system_backend() -> KeyringBackend:
    try:
        import keyring
        from keyring.backends.fail import Keyring as NoBackend
        from keyring.backends.null import Keyring as Disabled
    except ImportError as error:
        raise StartupError(
            "The setting key-store is keyring: install connmgr[keyring], in a clone by `pip install '.[keyring]'`."
        ) from error
    try:
        backend = keyring.get_keyring()
    except Exception as error:
        raise _unusable(error) from error
    if isinstance(backend, NoBackend | Disabled):
        raise StartupError("No keyring of the operating system is available; unlock one, or set key-store to file.")
    return backend


# Third-party backends raise more than the package's own errors.
def _unusable(error: Exception) -> StartupError:
    from keyring.errors import KeyringLocked

    if isinstance(error, KeyringLocked):
        return StartupError("The operating system's keyring is locked: unlock it and start again.")
    return StartupError(f"The operating system's keyring cannot be used ({type(error).__name__}).")
