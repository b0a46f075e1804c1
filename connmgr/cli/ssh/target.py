"""The connection that ``ssh [-l USER] [-p PORT] NAME`` means."""

from __future__ import annotations

import click

from connmgr.cli import selection
from connmgr.cli.selection import find_exactly
from connmgr.cli.ssh.options import SshOptions
from connmgr.client import Client

SSH_PORT = 22
_USER_OF_TYPE = {"shellEnvironment": "root"}
"""The user of a type's connections that name none."""


def resolve(client: Client, options: SshOptions) -> str:
    """Return the uuid of the connection that is meant, or of one to the address that is given.

    A stored connection has its own user and port. Other ones are refused: running as another user or on another machine
    than the caller says would be worse than failing.
    :raises click.UsageError: user or port are not the connection's.
    :raises Failure: there is no such connection, or several.
    """
    name = options.host or ""
    host, user, port = name, options.user, options.port
    stored = None if name.startswith(selection.SCHEME) else find_exactly(client, name)
    written = selection.read_address(name) if stored is None else None
    if written is not None:
        host, user, port = written.host, user or written.user, port or written.port
        if not name.startswith(selection.SCHEME):
            stored = find_exactly(client, host)
    if stored is not None:
        _check(client, stored, name, user, port)
        return stored
    if user is None and port is None and written is None:
        return client.connection.find(name)
    dialled = selection.Address(host, user, port)
    return client.connection.add(str(dialled), dialled.data, temporary=True)


def _check(client: Client, id: str, name: str, user: str | None, port: int | None) -> None:
    if user is None and port is None:
        return
    info = client.connection.info([id])[0]
    own = info.data.get("user") or _USER_OF_TYPE.get(info.type)
    if user is not None and user != own:
        said = f"logs in as {own}" if own else "does not say whom it logs in as"
        raise click.UsageError(
            f"{info.path} is a stored connection that {said}, not as {user}; "
            f"leave the user out, or write {selection.SCHEME}{user}@{name.rpartition('@')[2]} for the address."
        )
    own_port = info.data.get("port") or SSH_PORT
    if port is not None and port != own_port:
        raise click.UsageError(f"{info.path} is a stored connection to port {own_port}, not to {port}.")
