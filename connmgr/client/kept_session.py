"""A session with the daemon that other programs of this user can continue, such as that of ``connmgr vault unlock``."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from connmgr.client import Client
from connmgr.client.address import default_auth_file, default_url
from connmgr.client.credentials import digest, from_environment, read_token
from connmgr.client.errors import ClientError
from connmgr.client.lending import Lender

FILE_NAME = "session"
MAX_FILE_BYTES = 64 * 1024
REFUSED = "session_refused"
"""The error code for a file that other users could have written or read."""


class KeptSession:
    """The file in ``directory`` with the token of a session with the daemon at ``url``.

    Only this user can read it. It holds one session; that of another daemon stays until a new one is stored. Each
    ``credential``, as :attr:`Client.credential` names it, has a file of its own: nobody continues a session that
    another credential has begun.
    """

    def __init__(self, directory: Path, url: str, credential: str | None = None) -> None:
        self._path = directory / (FILE_NAME if credential is None else f"{FILE_NAME}-{credential}")
        self._url = url

    def token(self) -> str | None:
        """Return the stored token of this daemon, or None.

        :raises ClientError: the file is not one that :meth:`keep` makes.
        """
        kept = self._content()
        token = kept.get("token")
        usable = isinstance(token, str) and token.isascii() and token.isprintable()
        return token if usable and kept.get("url") == self._url else None

    def keep(self, token: str | None) -> None:
        """Make later commands continue the session with ``token``, until :meth:`forget`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"url": self._url, "token": token}, file)
            draft.replace(self._path)
        except BaseException:
            draft.unlink()
            raise

    def forget(self) -> None:
        """Make later commands begin their own sessions."""
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
                raise self._refused("is not a file")
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

    def _refused(self, reason: str) -> ClientError:
        return ClientError(f"{self._path} {reason}: remove it, and unlock the vault again.", REFUSED, 0)


def connect(
    name: str, timeout: float, shared: Path | None = None, *, token_file: str | os.PathLike[str] | None = None
) -> Client:
    """Return a client of this user's daemon for the program ``name``.

    It authenticates with the token in ``token_file``, or else with what the variables name, or else with the auth file.
    It continues the session of ``connmgr vault unlock`` with the same credential, if there is one; one stored in the
    directory ``shared`` is preferred. ``timeout`` is the seconds for one answer. For logins it lends the ssh-agent of
    the environment, as ``ssh`` would use it.
    :raises ClientError: the address or the credential is malformed, or the file of a session is not private.
    """
    secret = from_environment(os.environ) if token_file is None else read_token(token_file)
    credential = None if secret is None else digest(secret)
    auth_file = default_auth_file()
    try:
        url = default_url(auth_file)
        token = shared and KeptSession(shared, url, credential).token()
        token = token or KeptSession(auth_file.parent, url, credential).token()
        client = Client(url, auth_file, secret, name=name, timeout=timeout, session_token=token)
    except ValueError as error:
        raise ClientError(str(error), "unreachable", 0) from error
    client.remedy(Lender(client).lends)
    return client
