"""The session with the daemon that a command works in."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from pathlib import Path

import click

from connmgr import paths
from connmgr.cli.exits import DENIED, Failure
from connmgr.client import Client
from connmgr.client.http import default_url, url_of
from connmgr.errors import StartupError

NAME = "connmgr"
TIMEOUT = 86400.0 + 60.0


def connect(timeout: float = TIMEOUT) -> Client:
    """Return a client for the running command, closed when that ends.

    It continues the session of ``connmgr vault unlock`` where there is one; with ``--unlock`` it has one of its own.
    ``timeout`` is how many seconds an answer may take.
    :raises Failure: the API key cannot be read.
    :raises ClientError: the user could not be unlocked.
    """
    context = click.get_current_context()
    options = context.find_root().params
    url, auth_file = _address(options["url"])
    user = options["unlock"]
    kept = None if user else _kept_token(url)
    key = _api_key(options["api_key_file"])
    try:
        client = Client(url, auth_file, key, name=NAME, timeout=timeout, session_token=kept)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.call_on_close(client.close)
    if kept:
        context.call_on_close(lambda: None if client.session_token == kept else forget_session())
    if user:
        client.vault.unlock(user, ask_passphrase(f"Passphrase of {user}"))
    return client


def keep_session(client: Client) -> None:
    """Let later commands continue the session of ``client``, until :func:`forget_session`.

    Its token stands in a file that only this user can read, beside the auth file.
    """
    path = _session_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": client.base_url, "token": client.session_token}, file)
    draft.replace(path)


def forget_session() -> None:
    """Have later commands begin sessions of their own again."""
    _session_file().unlink(missing_ok=True)


def ask_passphrase(prompt: str, *, confirm: bool = False) -> str:
    """Ask for a passphrase on the terminal, even where stdin is something else; without one read a line of stdin."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return sys.stdin.readline().rstrip("\n")
    os.close(terminal)
    import getpass

    entered = getpass.getpass(f"{prompt}: ")
    if confirm and getpass.getpass(f"{prompt}, again: ") != entered:
        raise Failure("The two are not the same.")
    return entered


def _address(url: str | None) -> tuple[str, Path | None]:
    """Return URL and auth file of the daemon, None for the one that the client finds by itself."""
    if url is not None or not paths.config_file(os.environ).exists():
        return (url or default_url()).rstrip("/"), None
    from connmgr.settings import load

    settings = load({})
    return url_of(settings.host, settings.port), settings.auth_file


def _api_key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise Failure(f"The API key in {path} cannot be read: {error.strerror}", DENIED) from error


def _session_file() -> Path:
    return paths.auth_file(os.environ).with_name("session")


def _kept_token(url: str) -> str | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        descriptor = os.open(_session_file(), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor) as file:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise StartupError(f"{_session_file()} may be read by others: remove it, and unlock the vault again.")
            kept = json.load(file)
        return str(kept["token"]) if kept["url"] == url else None
    return None
