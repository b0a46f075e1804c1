"""The operands of ``connmgr cp``: local files, and files of connections."""

from __future__ import annotations

import re
from contextlib import ExitStack

import click
from click.shell_completion import CompletionItem

from connmgr.cli.copy.paths import CopyOperand, RemotePath, is_local, is_remote
from connmgr.cli.copy.plan import CopyOptions
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.plain import ensure_shell
from connmgr.cli.selection import SCHEME, ConnectionName, reach, read_address
from connmgr.cli.sessions import own_session
from connmgr.client import Client

# Digits after the host are a port, and another colon follows.
_ADDRESS_AND_PATH = re.compile(
    r"(?P<address>ssh://([^@/]*@)?(\[[^\]/]*\]|[^:/\[\]]*)(:[0-9]+(?=:))?):(?P<path>.*)", re.DOTALL
)
_PORT_FIRST = re.compile(r"[0-9]+(/.*)?", re.DOTALL)


class CopyPath(ConnectionName):
    """A local path, ``CONNECTION:path``, or ``-``."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        files = [CompletionItem(incomplete, type="file")]
        if is_local(incomplete):
            return files
        return [CompletionItem(f"{item.value}:") for item in super().shell_complete(ctx, param, incomplete)] or files


class Shells:
    """The shells that one command copies by: those of a session, or fresh ones, which end with the block.

    With ``--sudo`` they are those of that user, over the connections.
    """

    def __init__(self, client: Client, options: CopyOptions) -> None:
        self._client = client
        self._session, self._fresh, self._sudo = options.session, options.fresh, options.sudo
        self._own: dict[str, str] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Shells:
        return self

    def __exit__(self, *raised: object) -> None:
        self._cleanup.close()

    def remote(self, connection: str, name: str, path: str) -> RemotePath:
        """Return a path on the connection called ``name``; start its shell if none runs."""
        if self._sudo is not None:
            connection = self._client.connection.elevate(connection, self._sudo)
        if not self._fresh:
            ensure_shell(self._client, connection, self._session, name)
            return RemotePath(connection, path, self._session, name)
        if connection not in self._own:
            self._own[connection] = self._cleanup.enter_context(own_session(self._client, connection))
        return RemotePath(connection, path, self._own[connection], name)

    def operand(self, text: str, *, store: bool = False) -> CopyOperand:
        """Return what an operand names, or raise UsageError for an ``ssh://`` address without a path.

        With ``store`` the connection to an address stays in the vault.
        """
        name, path = _parted(text)
        if name is None:
            return text
        connection = reach(self._client, name, store=store and read_address(name) is not None)
        return self.remote(connection, name, path)


def is_of_address(text: str) -> bool:
    """Whether ``text`` names a file of an address; raises as :meth:`Shells.operand`."""
    name = _parted(text)[0]
    return name is not None and read_address(name) is not None


def _parted(text: str) -> tuple[str | None, str]:
    """Return connection and path, or None and ``text`` itself for a local path."""
    if not is_remote(text):
        return None, text
    if not text.startswith(SCHEME):
        name, _, path = text.partition(":")
        return name, path
    parts = _ADDRESS_AND_PATH.fullmatch(text)
    if parts is None or _PORT_FIRST.fullmatch(parts["path"]):
        raise click.UsageError(f"{text!r}: a file of an address is {SCHEME}[USER@]HOST[:PORT]:PATH.")
    return parts["address"], parts["path"]


def expanded(client: Client, operand: CopyOperand) -> list[CopyOperand]:
    """Return the files that a path with wildcards matches on its connection; return any other operand unchanged.

    :raises Failure: no file matches.
    """
    if not isinstance(operand, RemotePath) or not operand.has_wildcards:
        return [operand]
    matches = client.fs.glob(operand.connection, operand.path, session=operand.session)
    if not matches:
        raise Failure(f"{operand}: nothing matches there.", NOT_FOUND)
    return [operand._replace(path=match.name) for match in matches]
