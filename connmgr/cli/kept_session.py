"""The session of ``connmgr vault unlock``, which later commands continue."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from connmgr.cli.exits import Failure

FILE_NAME = "session"
MAX_FILE_BYTES = 64 * 1024


class KeptSession:
    """The file beside ``auth_file`` that keeps the token of a session with the daemon at ``url``.

    Only this user can read it. It keeps one session: a session of another daemon stays until a new one is kept.
    """

    def __init__(self, auth_file: Path, url: str) -> None:
        self._path = auth_file.with_name(FILE_NAME)
        self._url = url

    def token(self) -> str | None:
        """Return the kept token of this daemon, or None.

        :raises Failure: ``connmgr vault unlock`` cannot have made the file.
        """
        kept = self._content()
        token = kept.get("token")
        usable = isinstance(token, str) and token.isascii() and token.isprintable()
        return token if usable and kept.get("url") == self._url else None

    def keep(self, token: str | None) -> None:
        """Make later commands continue the session with ``token``, until :meth:`forget`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_name(f"{FILE_NAME}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"url": self._url, "token": token}, file)
            draft.replace(self._path)
        except BaseException:
            draft.unlink()
            raise

    def forget(self) -> None:
        """Make later commands begin sessions of their own."""
        if self._content().get("url") == self._url:
            self._path.unlink(missing_ok=True)

    def _content(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return {}
        except OSError as error:
            raise self._refused(f"cannot be read ({error.strerror})") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._refused("is no file")
            if status.st_uid != os.geteuid():
                return {}
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise self._refused("may be read by others")
            content = json.loads(os.read(descriptor, MAX_FILE_BYTES))
        except ValueError:
            return {}
        finally:
            os.close(descriptor)
        return content if isinstance(content, dict) else {}

    def _refused(self, reason: str) -> Failure:
        return Failure(f"{self._path} {reason}: remove it, and unlock the vault again.")
