"""The daemon's endpoints as methods, one class a group: ``/shell/exec`` is ``client.shell.exec``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from connmgr.client.broadcast import Broadcast, Outcome, RawOutcome, Read
from connmgr.client.errors import Answer
from connmgr.client.http import HttpSession
from connmgr.client.results import (
    Applied,
    Category,
    Connection,
    ConnectionType,
    DaemonStatus,
    ForgottenKey,
    ListedShell,
    Name,
    RawResult,
    Result,
    ShellInfo,
    VaultStatus,
    Version,
)
from connmgr.client.stream import LINES, Stream

if TYPE_CHECKING:
    from connmgr.client.pipe import Pipe


class Post(Protocol):
    """Sends fields to an endpoint and returns its answer."""

    def __call__(self, path: str, /, **fields: Any) -> Any: ...


class Group:
    """Endpoints below one path."""

    def __init__(self, post: Post) -> None:
        self._post = post


class Categories(Group):
    """``/category``."""

    def query(self, filter: str = "*") -> list[str]:
        """Return the ids of the categories whose path the filter matches."""
        return list(self._post("/category/query", filter=filter)["found"])

    def info(self, categories: Sequence[str]) -> list[Category]:
        """Describe categories; one that is unknown fails the whole request."""
        return [Category.read(one) for one in self._post("/category/info", categories=list(categories))["infos"]]

    def add(self, name: str, parent: str) -> str:
        """Return the id of the category ``name`` under ``parent``; add it if it is missing."""
        return str(self._post("/category/add", name=name, parent=parent)["category"])

    def remove(self, categories: Sequence[str], *, children: bool = False, contents: bool = False) -> None:
        """Remove categories. By default their children move up, and their connections to the default category."""
        options = {"removeChildrenCategories": children, "removeContents": contents}
        self._post("/category/remove", categories=list(categories), **options)


class Connections(Group):
    """``/connection``."""

    def query(
        self, connection: str = "*", *, category: str = "*", type: str = "*", name: str | None = None
    ) -> list[str]:
        """Return the ids of the connections that all filters match.

        ``name`` is for the name as ``connmgr ls`` prints it: the path, or category and path.
        """
        filters = {"categoryFilter": category, "connectionFilter": connection, "typeFilter": type}
        return list(self._post("/connection/query", **filters, **given(nameFilter=name))["found"])

    def names(self, name: str = "*", *, category: str = "*", type: str = "*") -> list[Name]:
        """Return the names of the connections that all filters match, in the order of their paths."""
        filters = {"categoryFilter": category, "connectionFilter": "*", "typeFilter": type, "nameFilter": name}
        answer = self._post("/connection/query", **filters, names=True)
        return [Name.read(id, one) for id, one in zip(answer["found"], answer["names"], strict=True)]

    def info(self, connections: Sequence[str]) -> list[Connection]:
        """Describe connections; one that is unknown fails the whole request."""
        return [Connection.read(one) for one in self._post("/connection/info", connections=list(connections))["infos"]]

    def add(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        validate: bool = False,
        category: str | None = None,
        temporary: bool | None = None,
    ) -> str:
        """Store a connection, or find the equivalent one, and return its id; ``data`` includes its ``type``.

        A ``temporary`` one is kept in the daemon's memory, while it has a shell and for a minute more.
        """
        more = given(category=category, temporary=temporary)
        return str(self._post("/connection/add", name=name, data=dict(data), validate=validate, **more)["connection"])

    def update(
        self,
        connection: str,
        *,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        category: str | None = None,
        validate: bool = False,
    ) -> None:
        """Change what is given; ``data`` replaces all stored data and includes the ``type``."""
        changes = {"name": name, "data": None if data is None else dict(data), "category": category}
        given = {key: value for key, value in changes.items() if value is not None}
        self._post("/connection/update", connection=connection, validate=validate, **given)

    def remove(self, connections: Sequence[str]) -> None:
        """Remove connections, and all that run over them."""
        self._post("/connection/remove", connections=list(connections))

    def refresh(self, connection: str) -> tuple[list[str], list[str]]:
        """Open a connection as a test, and store what it shows.

        Returns the connections to systems inside of it that were added, and those to systems that are gone.
        """
        answer = self._post("/connection/refresh", connection=connection)
        return answer["added"], answer["gone"]

    def toggle(self, connection: str, state: bool) -> None:
        """Have a tunnel open or closed from now on, or start and stop what a connection leads to."""
        self._post("/connection/toggle", connection=connection, state=state)

    def browse(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a connection's files, or nothing where there is none."""
        return dict(self._post("/connection/browse", connection=connection, **given(directory=directory)))

    def terminal(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a terminal on a connection, or nothing where there is none."""
        return dict(self._post("/connection/terminal", connection=connection, **given(directory=directory)))

    def apply(
        self,
        *,
        categories: Sequence[Sequence[str]] = (),
        add: Sequence[Mapping[str, Any]] = (),
        change: Sequence[Mapping[str, Any]] = (),
        remove: Sequence[str] = (),
    ) -> Applied:
        """Do all of it in one step, or nothing; the entries are those of ``/connection/apply``."""
        fields = {"categories": categories, "add": add, "change": change, "remove": remove}
        return Applied.read(self._post("/connection/apply", **{name: list(value) for name, value in fields.items()}))

    def types(self) -> list[ConnectionType]:
        """Describe the installed connection types."""
        return [ConnectionType.read(one) for one in self._post("/connection/types")["types"]]


class Shells(Group):
    """``/shell``; without the name of a ``session`` it is the connection's own shell."""

    def __init__(self, post: Post, http: HttpSession) -> None:
        super().__init__(post)
        self._http = http

    def start(self, connection: str, *, session: str | None = None) -> ShellInfo:
        """Start a shell, unless it runs, and describe it."""
        return ShellInfo.read(self._post("/shell/start", connection=connection, **given(session=session)))

    def ensure(self, connection: str, *, session: str | None = None) -> bool:
        """Start a shell, unless it runs; return whether it had been lost, so that directory and variables are new."""
        answer = self._post("/shell/start", connection=connection, tellRestarted=True, **given(session=session))
        return bool(answer.get("restarted", False))

    def exec(
        self,
        connection: str,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        start: bool | None = None,
        fresh: bool | None = None,
    ) -> Result:
        """Run a command, ``timeout`` seconds at most; raise :class:`ClientError` if it did not run to its end.

        With ``argv`` in place of ``command`` it is a program with its words, which no shell reads. ``saved`` is a saved
        command: its ``name``, and ``arguments`` by the names of its parameters.
        With ``start`` a shell that does not run is started first, or one that was lost: the result is ``restarted``.
        With ``fresh`` the command has a shell of its own, which is stopped afterwards.
        """
        options = given(timeout=timeout, stdin=stdin, cwd=cwd, env=env, session=session, start=start, fresh=fresh)
        return Result.read(
            self._post("/shell/exec", connection=connection, **what_runs(command, argv, saved), **options)
        )

    def exec_bytes(
        self,
        connection: str,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        start: bool | None = None,
        fresh: bool | None = None,
    ) -> RawResult:
        """As :meth:`exec`, with input and output byte by byte."""
        options = {"timeout": timeout, "cwd": cwd, "env": env, "session": session, "start": start, "fresh": fresh}
        fields = _bytewise(connection, command, argv, saved, stdin=stdin, **options)
        return RawResult.read(self._post("/shell/exec", **fields))

    def stream(
        self,
        connection: str,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        start: bool | None = None,
        fresh: bool | None = None,
    ) -> Stream:
        """Run a command, and return its output while it runs, byte by byte and without a limit.

        It returns when the command has printed something, or has ended. Errors are raised as by :meth:`exec`, those of
        a command that has begun while the output is iterated. The client can be used for other requests meanwhile.
        """
        options = {"timeout": timeout, "cwd": cwd, "env": env, "session": session, "start": start, "fresh": fresh}
        fields = _bytewise(connection, command, argv, saved, stdin=stdin, **options)
        return Stream(self._http.open("/shell/exec", self._http.encoded(**fields), accept=LINES))

    def pipe(
        self,
        connection: str,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        tcp: tuple[str, int] | None = None,
        **terminal: Any,
    ) -> Pipe:
        """Run ``command``, in the language of the login shell, or ``argv``, or the login shell itself, byte by byte.

        With ``tcp`` it is a stream from the far side to that host and port. With ``pty=True`` it has a terminal of the
        kind ``term``, of ``columns`` and ``rows``. It has nothing of the connection's shells, and ends with the
        :class:`Pipe`. An error of its start is raised when it is first read.
        """
        from connmgr.client.pipe import open_pipe

        to = None if tcp is None else {"host": tcp[0], "port": tcp[1]}
        run = {**what_runs(command, argv, saved), **given(tcp=to)}
        return open_pipe(self._http, {"connection": connection, **run, **terminal})

    def broadcast(
        self,
        command: str | None = None,
        connections: Sequence[str] | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        connection: str | None = None,
        category: str | None = None,
        type: str | None = None,
        parallel: int | None = None,
        start: bool | None = None,
        stdin: str | None = None,
        **options: Any,
    ) -> Broadcast[Outcome]:
        """Run a command on many connections at once, and return their outcomes as they come.

        They are those of ``connections``, or those that the filters ``connection``, ``category`` and ``type`` match,
        ``parallel`` at a time. Shells that do not run are started, unless ``start`` is False. The other ``options``
        are those of :meth:`exec`.
        """
        filters = {"connectionFilter": connection, "categoryFilter": category, "typeFilter": type}
        fields = {"connections": connections, "parallel": parallel, "start": start, "stdin": stdin}
        return self._broadcast(Outcome.read, **what_runs(command, argv, saved), **fields, **filters, **options)

    def broadcast_bytes(
        self,
        command: str | None = None,
        connections: Sequence[str] | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        stdin: bytes | None = None,
        **options: Any,
    ) -> Broadcast[RawOutcome]:
        """As :meth:`broadcast`, with input and output byte by byte."""
        encoded = None if stdin is None else base64.b64encode(stdin).decode()
        fields = {"connections": connections, "encoding": "base64", "stdin": encoded}
        return self._broadcast(RawOutcome.read, **what_runs(command, argv, saved), **fields, **options)

    def _broadcast(self, read: Callable[[Answer], Read], **fields: Any) -> Broadcast[Read]:
        response = self._http.open("/shell/broadcast", self._http.encoded(**given(**fields)))
        return Broadcast(response, read, self._http.close)

    def list(self, connection: str | None = None) -> list[ListedShell]:
        """Describe the shells that run, of one connection or all."""
        found = self._post("/shell/list", **given(connection=connection))["shells"]
        return [ListedShell.read(one) for one in found]

    def stop(self, connection: str, *, session: str | None = None, all: bool = False) -> None:
        """Stop a shell, or all shells of the connection."""
        options = {"all": True} if all else {}
        self._post("/shell/stop", connection=connection, **given(session=session), **options)


class HostKeys(Group):
    """``/hostkey``."""

    def trust(self, connection: str, host: str, key: str) -> None:
        """Accept ``key`` of ``host``: ``hostKey`` and ``host`` of the details of a ``host_key_unknown``."""
        self._post("/hostkey/trust", connection=connection, host=host, hostKey=key)

    def forget(self, connection: str, host: str | None = None) -> list[ForgottenKey]:
        """Remove the known keys of ``host``, by default of the one that the connection leads to, and return them."""
        more = {} if host is None else {"host": host}
        found = self._post("/hostkey/forget", connection=connection, **more)["keys"]
        return [ForgottenKey(one["key"], one["place"], one["kept"]) for one in found]


class Secrets(Group):
    """``/secret``."""

    def encrypt(self, value: str, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the encrypted form of ``value``."""
        options = {} if principals is None else {"principals": list(principals)}
        return dict(self._post("/secret/encrypt", value=value, **options)["encrypted"])

    def decrypt(self, encrypted: Mapping[str, Any]) -> str:
        """Return the value that :meth:`encrypt` encrypted."""
        return str(self._post("/secret/decrypt", encrypted=dict(encrypted))["decrypted"])


class Vault(Group):
    """``/vault``; unlocking affects this client's session alone."""

    def status(self) -> VaultStatus:
        """Return whether the vault has users, and what this session may decrypt."""
        return VaultStatus.read(self._post("/vault/status"))

    def unlock(self, user: str, passphrase: str) -> None:
        """Unlock a user for this session."""
        self._post("/vault/unlock", user=user, passphrase=passphrase)

    def lock(self) -> None:
        """Forget the user that this session has unlocked."""
        self._post("/vault/lock")

    def add_user(self, user: str, passphrase: str) -> None:
        """Add a user."""
        self._post("/vault/user/add", user=user, passphrase=passphrase)

    def change_passphrase(self, user: str, passphrase: str, new: str) -> None:
        """Give a user another passphrase."""
        self._post("/vault/user/passphrase", user=user, passphrase=passphrase, newPassphrase=new)

    def remove_user(self, user: str, *, force: bool = False) -> list[str]:
        """Remove a user, and return the ids of the connections whose secrets the user could read."""
        return list(self._post("/vault/user/remove", user=user, force=force)["connections"])


class DaemonItself(Group):
    """``/daemon``."""

    def version(self) -> Version:
        """Return the versions of the API, the daemon and its runtime."""
        return Version.read(self._post("/daemon/version"))

    def status(self) -> DaemonStatus:
        """Describe the running daemon: its shells and the resources in use."""
        return DaemonStatus.read(self._post("/daemon/status"))

    def stop(self) -> None:
        """Have the daemon stop."""
        self._post("/daemon/stop")


def _bytewise(
    connection: str,
    command: str | None,
    argv: Sequence[str] | None,
    saved: Mapping[str, Any] | None,
    *,
    stdin: bytes | None,
    **options: Any,
) -> dict[str, Any]:
    """Return the fields of a command whose input and output are bytes."""
    encoded = None if stdin is None else base64.b64encode(stdin).decode()
    fields = {"connection": connection, **what_runs(command, argv, saved), "encoding": "base64"}
    return {**fields, **given(stdin=encoded, **options)}


def what_runs(command: str | None, argv: Sequence[str] | None, saved: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a command, or of a program with its words."""
    # Letters are no words: a text is left to the daemon to refuse.
    words = argv if argv is None or isinstance(argv, str) else list(argv)
    return given(command=command, argv=words, saved=saved)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
