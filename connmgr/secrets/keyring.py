"""Keeps the vault's key in the keyring of the operating system, for installations of ``connmgr[keyring]``."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING

from connmgr.errors import StartupError
from connmgr.secrets.keyfile import KEY_BYTES, VaultKey

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

_SERVICE = "connmgr"


class Keyring:
    """Keeps the key in the entry ``connmgr`` of the keyring, under the path of the vault's data directory."""

    def __init__(self, data_dir: Path, backend: KeyringBackend | None = None) -> None:
        """Use ``backend``, or the system's preferred one; raise :class:`StartupError` if there is none."""
        self._entry = str(data_dir.absolute())
        self._backend = backend or _system_backend()

    def read(self) -> VaultKey | None:
        return self._read(self._entry)

    def read_next(self) -> VaultKey | None:
        return self._read(self._next)

    def write_next(self, key: VaultKey) -> None:
        self._write(self._next, key)

    def promote(self) -> None:
        # A keyring cannot rename. After an interruption here both entries hold the same key.
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
            "The setting key_store is keyring: install connmgr[keyring], in a clone by `pip install '.[keyring]'`."
        ) from error
    try:
        backend = keyring.get_keyring()
    except Exception as error:
        raise _unusable(error) from error
    if isinstance(backend, NoBackend | Disabled):
        raise StartupError("No keyring of the operating system is available; set key_store to file, or unlock one.")
    return backend


# Third-party backends raise more than the package's own errors.
def _unusable(error: Exception) -> StartupError:
    from keyring.errors import KeyringLocked

    if isinstance(error, KeyringLocked):
        return StartupError("The operating system's keyring is locked: unlock it and start again.")
    return StartupError(f"The operating system's keyring cannot be used ({type(error).__name__}).")
