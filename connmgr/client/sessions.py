"""What the programs of one user share at the daemon: a session, logins that they help with, and shells in turns.

with connect("ansible", timeout=60) as client:
    slot = Slot("ansible", connection)
    client.shell.exec(connection, "uptime", session=slot.session)
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connmgr.client import Client
from connmgr.client.address import default_auth_file, default_url
from connmgr.client.credentials import digest, from_environment, read_token
from connmgr.client.errors import ClientError

if TYPE_CHECKING:
    from connmgr.client import Client


FILE_NAME = "session"
MAX_FILE_BYTES = 64 * 1024
NOT_PRIVATE = "session_refused"
"""The error code for a file that other users could have written or read."""


class SessionFile:
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
        content = self._content()
        token = content.get("token")
        usable = isinstance(token, str) and token.isascii() and token.isprintable()
        return token if usable and content.get("url") == self._url else None

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
            raise self._refusal(f"cannot be read ({error.strerror})") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._refusal("is not a file")
            # As root with another user's home, for example: that session is not this user's, and no reason to fail.
            if status.st_uid != os.geteuid():
                return {}
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise self._refusal("may be read by others")
            content = json.loads(os.read(descriptor, MAX_FILE_BYTES))
        except ValueError:
            return {}
        finally:
            os.close(descriptor)
        return content if isinstance(content, dict) else {}

    def _refusal(self, reason: str) -> ClientError:
        return ClientError(f"{self._path} {reason}: remove it, and unlock the vault again.", NOT_PRIVATE, 0)


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
        token = shared and SessionFile(shared, url, credential).token()
        token = token or SessionFile(auth_file.parent, url, credential).token()
        client = Client(url, auth_file, secret, name=name, timeout=timeout, session_token=token)
    except ValueError as error:
        raise ClientError(str(error), "unreachable", 0) from error
    client.remedy(Lender(client).lends)
    return client


LOGIN_FAILED, NOT_TAKEN = "auth_failed", "invalid_request"

AGAIN_SECONDS = 5.0
"""A connection that is refused again so soon after a login needs something else."""


class Lender:
    """Logs in with what the daemon lacked. By itself it lends the ssh-agent of SSH_AUTH_SOCK; a subclass can ask.

    What a connection needed is lent again when it has to be opened again.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._passphrases: dict[str, str] = {}
        self._agents: set[str] = set()
        self._offered_agents: set[str] = set()
        self._logged_in: dict[str, float] = {}
        self._busy = False

    def lends(self, error: ClientError, _body: bytes = b"") -> bool:
        """Whether the request that was refused by ``error`` may be repeated, since a login has succeeded now.

        Otherwise ``error`` has the message of the last attempt.
        """
        opens = error.details.get("opens")
        # A login is a request too, and has the same remedy.
        if error.code != LOGIN_FAILED or not isinstance(opens, str) or self._busy:
            return False
        if time.monotonic() - self._logged_in.get(opens, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._busy = True
        try:
            return self._logs_in(opens, error)
        finally:
            self._busy = False

    def passphrase(self, key: str, *, wrong: bool) -> str | None:
        """Return the passphrase of a private key, or None; ``wrong`` says that the last one was wrong."""
        return None

    def logged_in(self, opens: str, error: ClientError) -> None:
        """Called after a login to the connection ``opens``, whose earlier attempt ``error`` refused."""

    def _logs_in(self, opens: str, error: ClientError) -> bool:
        is_known = opens in self._logged_in or error.details.get("key") in self._passphrases
        refused = self.log_in(opens) if is_known else error
        before = error
        while refused is not None:
            before = refused
            if not self._finds_more(opens, refused):
                error.message, error.details = refused.message, refused.details
                return False
            refused = self.log_in(opens)
            if refused is not None and refused.code == NOT_TAKEN:
                # The daemon has asked that agent already. Something else may help.
                self._agents.discard(opens)
                refused = before
        self._logged_in[opens] = time.monotonic()
        self.logged_in(opens, before)
        return True

    def _finds_more(self, opens: str, refused: ClientError) -> bool:
        """Find an agent or a passphrase that was not lent yet, and return whether there is one."""
        if refused.code != LOGIN_FAILED:
            return False
        if "agent" in refused.details and opens not in self._offered_agents and os.environ.get("SSH_AUTH_SOCK"):
            self._offered_agents.add(opens)
            self._agents.add(opens)
            return True
        key, wrong = refused.details.get("key"), bool(refused.details.get("wrongPassphrase"))
        if not isinstance(key, str) or (key in self._passphrases and not wrong):
            return False
        phrase = self.passphrase(key, wrong=wrong)
        if phrase is not None:
            self._passphrases[key] = phrase
        return phrase is not None

    def log_in(self, opens: str) -> ClientError | None:
        """Log in with all that is lent; return the error, or None if that succeeded."""
        agent = os.environ.get("SSH_AUTH_SOCK") if opens in self._agents else None
        try:
            self._client.connection.login(opens, agent=agent, passphrases=self._passphrases)
        except ClientError as error:
            return error
        return None


WATCHED_SECONDS = 60.0
"""A watch ends after this time: a login waits for a touch no longer than the link may take to open."""


ARRIVAL_SECONDS = 1.0
"""Time in which the daemon begins to handle a watch's request: it counts back from then."""


class TouchWatch:
    """Calls ``tell`` with the name of each connection whose login waits for a touch, until :meth:`over`.

    It begins with those since the request, which was sent ``waited`` seconds before, and uses a connection to the
    daemon and a thread of its own, from which ``tell`` is called.
    """

    def __init__(self, client: Client, tell: Callable[[str], None], *, waited: float) -> None:
        # Imported here, as in Slot: every command loads this module, for its sessions, and few wait for a touch.
        import threading

        self._client = client.clone(WATCHED_SECONDS)
        self._tell = tell
        self._began = time.monotonic() - waited
        self._is_over = False
        self._end = threading.Timer(WATCHED_SECONDS, self.over)
        self._end.daemon = True
        self._end.start()
        threading.Thread(target=self._watch, name="touches", daemon=True).start()

    def over(self) -> None:
        """Tell nothing more."""
        self._is_over = True
        self._end.cancel()
        self._client.abandon()

    def _watch(self) -> None:
        # Imported here, because what else is in this module is loaded by commands that need none of the contract.
        from connmgr.contract.event import LINK, TOUCH

        # Whoever cannot be told of touches, such as a token without the scope, waits without that.
        with suppress(ClientError), self._client, self._client.clone() as asking:
            # Counted at the last moment: a busy machine takes its time to load what this needs, and the one touch that
            # was told meanwhile is told no second time.
            ago = min(time.monotonic() - self._began + ARRIVAL_SECONDS, WATCHED_SECONDS)
            for event in self._client.events([LINK], ago=ago, retry_timeout=0):
                if self._is_over:
                    return
                if event.change == TOUCH:
                    # One that is not stored yet has no name.
                    id = event.connection
                    name = "the new connection" if id is None else asking.connection.info([id])[0].path
                    if not self._is_over:
                        self._tell(name)


MAX_SLOTS = 12
"""Most sessions per connection; the daemon allows 16 for all programs together."""


class Slot:
    """A session of a connection that no other process of this ``program`` and user uses; ``session`` is its name.

    It is left open for the next process, which need not start a shell. If all sessions are in use, it waits for the one
    chosen by this process's id.
    """

    def __init__(self, program: str, connection: str) -> None:
        import fcntl

        directory = _directory(program)
        # A lock of the kernel, and not a file that exists: it ends with the process, however that ends.
        for number in range(1, MAX_SLOTS + 1):
            self.session = f"{program}-{number}"
            self._lock = _open_lock(directory, connection, number)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
            else:
                return
        number = 1 + os.getpid() % MAX_SLOTS
        self.session = f"{program}-{number}"
        self._lock = _open_lock(directory, connection, number)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def release(self) -> None:
        """Leave the session to other processes."""
        os.close(self._lock)


def is_slot(program: str, session: str | None) -> bool:
    """Whether ``session`` is the name of a slot of ``program``."""
    return session is not None and session.startswith(f"{program}-")


def _directory(program: str) -> Path:
    """Return the directory of the locks: beside the auth file, or in tmp if no daemon of this machine has created that.

    :raises OSError: it cannot be created, or belongs to another user.
    """
    # Imported here, because what else is in this module is loaded by every command.
    import tempfile

    beside = default_auth_file().parent
    if beside.is_dir():
        directory = beside / program
    else:
        directory = Path(tempfile.gettempdir()) / f"connmgr-{os.geteuid()}-{program}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user: remove it, or have it removed.")
    return directory


def _open_lock(directory: Path, connection: str, number: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(directory / f"{connection}.{number}", flags, 0o600)
