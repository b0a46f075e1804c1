"""How a command comes to its daemon, and what it does when it is refused: start it, log in, trust a host, ask."""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from connmgr import paths
from connmgr.cli.exits import UNREACHABLE, Failure
from connmgr.cli.plain import ANSWER_SECONDS, CLIENT_NAME, daemon_address, session_with
from connmgr.cli.progress import ask_secret, has_terminal, hush, patience
from connmgr.client import Client, ClientError
from connmgr.client.address import default_auth_file
from connmgr.client.credentials import digest, from_environment, read_api_key, read_token
from connmgr.client.repeat import Remedy
from connmgr.client.sessions import Lender, SessionFile
from connmgr.paths import daemon_file_of, find_daemon, read_daemon_file
from connmgr.printable import visible

if TYPE_CHECKING:
    import subprocess

    from connmgr.client.repeat import Remedy
    from connmgr.contract.vault import UsedRecovery


_CREDENTIAL = "connmgr.credential"
_NAMING = ("CONNMGR_HOST", "CONNMGR_PORT")


def connect(timeout: float = ANSWER_SECONDS, *, offers_start: bool = True) -> Client:
    """Return a client for the running command; it is closed when the command ends.

    If no daemon runs and ``offers_start``, it asks on the terminal whether to start one. The client continues the
    session of ``connmgr vault unlock`` if there is one; ``--unlock`` begins a session of its own. ``timeout`` is the
    seconds for one answer.
    :raises Failure: no daemon starts.
    :raises ClientError: what an option or a variable names is not a credential, the file of the kept session is not
        private, or the user could not be unlocked.
    """
    context = click.get_current_context()
    options = context.find_root().params
    url, auth_file = _address(options["url"])
    user, key = options["unlock"], named_credential()
    if offers_start and options["url"] is None and key is None and started_on_request(auth_file):
        url, auth_file = _address(None)
    try:
        client, end = session_with(
            url,
            auth_file,
            key,
            timeout=timeout,
            continues=user is None,
            # A given address with a given key may be another user's daemon.
            foreign=key is not None and options["url"] is not None,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.call_on_close(end)
    client.remedy(remedy_of(client))
    patience(client)
    if user is not None:
        tell_recoveries(user, client.vault.unlock(user, ask_passphrase(f"Passphrase of {user}")))
    return client


def raise_error_of_front() -> None:
    """Raise the error that ended this command in the front, so that it is reported as if the command had run here."""
    if (error := click.get_current_context().obj) is not None:
        raise error


def remedy_of(client: Client) -> Remedy:
    """Return what a command does when a request of ``client`` is refused."""
    sudoer, unlocker, remedy = Sudoer(client), Unlocker(client), remedies(client, Doorkeeper(client))
    return lambda error, body: remedy(error, body) or sudoer.admits(error, body) or unlocker.admits(error, body)


def clients_by_token(timeout: float) -> Callable[[str], Client]:
    """Return a function that returns a client with a given token for the running command's daemon, in any thread.

    :raises Failure: the environment names no address.
    """
    url_option = click.get_current_context().find_root().params["url"]
    _address(url_option)

    def client(token: str) -> Client:
        url, auth_file = _address(url_option)
        return Client(url, auth_file, token, name=CLIENT_NAME, timeout=timeout, foreign=url_option is not None)

    return client


def way_to_daemon() -> tuple[list[str], dict[str, str]]:
    """Return options and environment variables by which another program finds this command's daemon."""
    url = click.get_current_context().find_root().params["url"]
    if url is not None:
        return ["--url", url], {}
    variables = {name: os.environ[name] for name in _NAMING if os.environ.get(name)}
    return [], {"CONNMGR_AUTH_FILE": str(_address(None)[1].absolute()), **variables}


def kept_session() -> SessionFile:
    """Return the file of the session that later commands with the same credential continue."""
    url, auth_file = _address(click.get_current_context().find_root().params["url"])
    key = named_credential()
    return SessionFile(auth_file.parent, url, None if key is None else digest(key))


def _line_of_stdin() -> str:
    """Return the next line of standard input, and leave all that follows for a command."""
    # Byte by byte, without a buffer: what was read ahead would be missing in the command's input.
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def ask_passphrase(prompt: str, *, confirm: bool = False) -> str:
    """Ask for a passphrase on the terminal, even if stdin is redirected; without a terminal read a line of stdin."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return _line_of_stdin()
    os.close(terminal)
    entered = ask_secret(prompt)
    if confirm and ask_secret(f"{prompt}, again") != entered:
        raise Failure("The two passphrases differ: nothing was changed.")
    return entered


def _address(url: str | None) -> tuple[str, Path]:
    """Return URL and auth file of the daemon."""
    if url is not None:
        return url.rstrip("/"), default_auth_file()
    try:
        return daemon_address()
    except ValueError as error:
        raise Failure(str(error)) from error


def named_credential() -> str | None:
    """Return the token or API key that the running command names; None if it authenticates with the auth file.

    An option outranks the variables.
    :raises UsageError: there are two options.
    :raises ClientError: what is named is not a credential.
    """
    context = click.get_current_context()
    # Read once: the file may be a pipe.
    if _CREDENTIAL not in context.meta:
        context.meta[_CREDENTIAL] = _read_credential(context.find_root().params)
    credential: str | None = context.meta[_CREDENTIAL]
    return credential


def _read_credential(options: dict[str, Any]) -> str | None:
    token_file, api_key_file = options["token_file"], options["api_key_file"]
    if token_file is not None and api_key_file is not None:
        raise click.UsageError("--token-file and --api-key-file name two credentials: give one.")
    if token_file is not None:
        return read_token(token_file)
    return from_environment(os.environ) if api_key_file is None else read_api_key(api_key_file)


READY_SECONDS = 30.0

STOP_SECONDS = 12.0
"""Longer than a daemon takes to stop."""

MAX_LOG_BYTES = 16 * 1024 * 1024
"""At this size the next start begins a new log, and keeps one old one."""


def started_on_request(auth_file: Path) -> bool:
    """Start a daemon if none with ``auth_file`` runs and a person at the terminal agrees; return whether it started.

    :raises Failure: it does not start.
    """
    as_json = click.get_current_context().params.get("as_json")
    at_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if as_json or not at_terminal or not _is_absent(auth_file):
        return False
    if paths.auth_file_elsewhere(auth_file, os.environ):
        # It would be refused, for the other daemon has the vault. The error says where that one is.
        return False
    if not click.confirm("No daemon runs. Start one in the background?", default=True, err=True):
        return False
    log = paths.state_directory(os.environ) / "daemon.log"
    _start(auth_file, log)
    click.echo(f"The daemon runs until `connmgr stop`; its log is {log}.", err=True)
    return True


def _is_absent(auth_file: Path) -> bool:
    """Whether certainly no daemon with ``auth_file`` runs: it ended, or was killed."""
    try:
        read_daemon_file(daemon_file_of(auth_file))
    except ProcessLookupError:
        return True
    except OSError:
        # A daemon removes its auth file when it ends.
        return not os.path.lexists(auth_file)
    return False


def _start(auth_file: Path, log: Path) -> None:
    import subprocess

    output = _open_log(log)
    # Only what this daemon appends to the log is quoted, if it does not start.
    began = os.fstat(output).st_size
    try:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [*program(), "serve"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            # It outlives this terminal, whose directory may be removed or unmounted later.
            cwd=Path.home(),
            start_new_session=True,
        )
    finally:
        os.close(output)
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout:
        ready = _is_ready(process.stdout)
    # Another command may have started a daemon meanwhile. The vault's lock lets one of the two live.
    if ready or find_daemon(auth_file):
        return
    reason = _end_daemon(process) or log.read_bytes()[began:].decode(errors="replace").strip()
    raise Failure(f"The daemon does not start. {visible(reason)}", UNREACHABLE)


def _open_log(log: Path) -> int:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # O_APPEND, because two daemons may write the log for a moment: the one that starts and the one that does not.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o600)
    if os.fstat(descriptor).st_size < MAX_LOG_BYTES:
        return descriptor
    os.close(descriptor)
    log.replace(log.with_name(f"{log.name}.1"))
    return os.open(log, flags, 0o600)


def _is_ready(output: IO[bytes]) -> bool:
    """Wait for the line that a ready daemon prints; return False if its output ends first."""
    deadline = time.monotonic() + READY_SECONDS
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
            received = os.read(output.fileno(), 4096)
            if not received:
                return False
            line += received
    return True


def _end_daemon(process: subprocess.Popen[bytes]) -> str:
    """End a daemon that is not ready; return why it failed, or ``""`` if it ended by itself and its log tells."""
    import subprocess

    try:
        # Its output has ended; the process follows.
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.terminate()
    else:
        return ""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return f"It was not ready within {READY_SECONDS:g} seconds and was ended."


def program() -> list[str]:
    """Return the words that call this installation's ``connmgr`` from any directory.

    A symbolic link to it, such as pipx makes, is kept: after an upgrade it leads to the new program.
    """
    argv0 = Path(sys.argv[0]).absolute()
    for script in (argv0, Path(sys.executable).with_name("connmgr")):
        if script.name == "connmgr" and script.is_file() and os.access(script, os.X_OK):
            return [str(script)]
    return [sys.executable, "-m", "connmgr"]


VAULT = "vault"
"""The principal that any unlocked user opens."""

MAX_TRIES = 3
"""Most questions for the passphrase of one key, as with ssh (NumberOfPasswordPrompts)."""


def remedies(client: Client, doorkeeper: Doorkeeper, *, asks: bool = True) -> Remedy:
    """Return the remedy of a command for unknown host keys and for logins; without ``asks`` it asks nothing."""
    lender = _Person(client) if asks else Lender(client)
    return lambda error, body: (asks and doorkeeper.admits(error, body)) or lender.lends(error)


class _Person(Lender):
    """Asks for passphrases on the terminal, if there is one."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._questions = Counter[str]()
        self._offered: set[str] = set()

    def passphrase(self, key: str, *, wrong: bool) -> str | None:
        if not has_terminal() or self._questions[key] == MAX_TRIES:
            return None
        self._questions[key] += 1
        path = os.path.expanduser(key) if key.startswith("~/") else key  # noqa: PTH111 - a text, as ssh shows it
        # As with ssh, an empty one skips the key.
        return ask_secret(f"Enter passphrase for key '{visible(path)}'") or None

    def logged_in(self, opens: str, error: ClientError) -> None:
        """Ask whether the passphrase shall be kept with the connection that has the key."""
        key, connection = error.details.get("key"), error.details.get("connection")
        was_asked = key in self._passphrases and sys.stdin.isatty()
        if not was_asked or not isinstance(connection, str) or connection in self._offered:
            return
        self._offered.add(connection)
        stored = self._client.connection.info([connection])[0]
        identity = stored.data.get("identity")
        if not isinstance(identity, dict):
            # The key comes from ~/.ssh/config, where it is one of several; an identity would be the only one.
            return
        question = f"Keep this passphrase, sealed in the vault, for {visible(stored.path)}?"
        if not click.confirm(question, err=True):
            return
        data: dict[str, Any] = {"type": stored.type, **stored.data}
        data["identity"] = {**identity, "passphrase": self._passphrases[str(key)]}
        try:
            self._client.connection.update(connection, data=data)
        except ClientError as refused:
            click.echo(f"The passphrase is not kept: {visible(refused.message)}", err=True)
            return
        # The change has closed the link.
        self.log_in(opens)


UNKNOWN, CHANGED = "host_key_unknown", "host_key_changed"


class Doorkeeper:
    """Trusts unknown host keys: those with one of ``fingerprints``; if none are given, those that a person accepts."""

    def __init__(self, client: Client, fingerprints: Sequence[str] = ()) -> None:
        self._client = client
        self._fingerprints = fingerprints
        self.admitted = 0
        """Number of keys trusted so far."""

    def admits(self, error: ClientError, body: bytes) -> bool:
        """Whether the request with ``body``, refused by ``error``, may be repeated because a key is now trusted."""
        details = error.details
        if error.code != UNKNOWN or not {"host", "hostKey", "fingerprint"} <= details.keys():
            return False
        connection = json.loads(body).get("connection")
        if not isinstance(connection, str) or not self._accepts(details):
            return False
        self._client.hostkey.trust(connection, details["host"], details["hostKey"])
        self.admitted += 1
        click.echo(f"trusted  {visible(details['host'])}  {visible(details['fingerprint'])}", err=True)
        return True

    def _accepts(self, details: dict[str, Any]) -> bool:
        if self._fingerprints:
            return details["fingerprint"] in self._fingerprints
        return sys.stdin.isatty() and sys.stderr.isatty() and _is_trusted(details)


def _is_trusted(details: dict[str, Any]) -> bool:
    hush()
    kind = visible(details["hostKey"].split()[0])
    click.echo(f"The host key of {visible(details['host'])} is unknown:", err=True)
    click.echo(f"{kind} {visible(details['fingerprint'])}", err=True)
    while True:
        answer = click.prompt("Trust this host? (yes/no/fingerprint)", err=True, prompt_suffix=" ").strip()
        if answer == details["fingerprint"] or answer.lower() == "yes":
            return True
        if answer.lower() == "no":
            return False


TRIES = 3
"""Passwords that are asked for, as by sudo itself."""

LOCKED = frozenset({"secret_locked", "vault_locked"})
WRONG = "unlock_failed"


class Unlocker:
    """Asks on the terminal for the passphrase of a vault user when a command needs a locked secret.

    The user is unlocked for the session of the command: for this one alone, or for later ones, too, if it continues
    that of ``connmgr vault unlock``.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tries = 0

    def admits(self, error: ClientError, _body: bytes) -> bool:
        """Whether the request refused by ``error`` may be repeated because a user is unlocked now."""
        if error.code not in LOCKED or not has_terminal():
            return False
        hush()
        click.echo(visible(error.message), err=True)
        users = [str(principal) for principal in error.details.get("principals", ()) if principal != VAULT]
        user = users[0] if len(users) == 1 else click.prompt("Vault user (empty for none)", "", err=True).strip()
        while user and self._tries < TRIES:
            self._tries += 1
            # An empty one gives up, as with the passphrase of a key.
            passphrase = ask_secret(f"Passphrase of {visible(user)}")
            if not passphrase:
                return False
            try:
                tell_recoveries(user, self._client.vault.unlock(user, passphrase))
            except ClientError as refused:
                if refused.code != WRONG:
                    raise
                click.echo(visible(refused.message), err=True)
            else:
                return True
        return False


def tell_recoveries(user: str, keys: Sequence[UsedRecovery]) -> None:
    """Tell that recovery keys have set the passphrase of ``user``, who may not know."""
    for key in keys:
        click.echo(
            f"connmgr: Recovery key {key.recovery} set a new passphrase of {user} at {key.used:%Y-%m-%d %H:%M} UTC. "
            f"If that was not you, tell the owner of this machine; either way `connmgr vault recovery rotate "
            f"{key.recovery}` makes its words worthless.",
            err=True,
        )


class Sudoer:
    """Asks on the terminal for passwords of sudo that are not stored, or were refused."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tries: Counter[tuple[str, str]] = Counter()

    def admits(self, error: ClientError, _body: bytes) -> bool:
        """Whether the request refused by ``error`` may be repeated because the daemon now has a password."""
        about = lacking(error)
        if about is None:
            return False
        self._tries[about] += 1
        if self._tries[about] > TRIES or not has_terminal():
            return False
        connection, user = about
        hush()
        click.echo(visible(error.message), err=True)
        password = ask_secret(f"Password for sudo to {user}")
        self._client.connection.elevate(connection, user, password=password)
        return True


def lacking(error: object) -> tuple[str, str] | None:
    """Return the connection and the user for which sudo has no password, or a wrong one; None for other errors."""
    if not isinstance(error, ClientError) or not {"passwordRequired", "passwordRefused"} & error.details.keys():
        return None
    about = error.details.get("elevation")
    return (str(about["connection"]), str(about["user"])) if about else None


def ask_for_all(names: Sequence[str], user: str) -> str | None:
    """Ask once for sudo's password on all of ``names``; return None without a terminal or without a password."""
    if not has_terminal():
        return None
    hush()
    click.echo(f"sudo wants a password on {', '.join(map(visible, names))}.", err=True)
    return (
        ask_secret(f"Password for sudo to {user} on {'it' if len(names) == 1 else 'all of them'} (empty for none)")
        or None
    )
