"""``/shell`` of the client: commands, and the shells that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar

from connmgr.client.errors import Answer, ClientError, Unreachable, from_member, lacking
from connmgr.client.group import Group, base64_of, elevate_of, list_of, saved_of, words_of
from connmgr.client.output import (
    WHOLE_BYTES,
    Input,
    RawResult,
    Result,
    Stream,
    is_whole,
    lines_of,
    run,
)
from connmgr.client.wire import Closeable, Response, WireError
from connmgr.contract import shell as messages
from connmgr.contract.message import given_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from connmgr.client.pipe import Pipe


class Options(TypedDict, total=False):
    """The options of a command.

    ``argv`` in place of a command is a program with its words, which no shell reads. ``saved`` is a saved command: its
    ``name``, and ``arguments`` by the names of its parameters. ``timeout`` is in seconds. With ``start``, a missing or
    lost shell is started first; after a lost one the result is ``restarted``. With ``fresh``, the command has a shell
    of its own, which is stopped afterwards. ``send_env`` are variables of the client's environment, such as LANG; those
    that the connection takes are set. ``elevate`` runs it by sudo as its ``user``, with its ``password`` or the stored
    one.
    """

    argv: Sequence[str] | None
    saved: Mapping[str, Any] | None
    timeout: float | None
    cwd: str | None
    env: Mapping[str, str] | None
    session: str | None
    start: bool | None
    fresh: bool | None
    send_env: Mapping[str, str] | None
    elevate: Mapping[str, str] | None


class BroadcastOptions(Options, total=False):
    """The options of a command on many connections, beside those of one.

    The filters ``connection``, ``category`` and ``type`` choose connections in place of their ids. ``parallel`` is how
    many run the command at a time. With ``start`` False, no shell is started.
    """

    connection: str | None
    category: str | None
    type: str | None
    parallel: int | None


class ListedShell(NamedTuple):
    """A running shell with its process and directory, and since when it and its command run, by the daemon's clock.

    ``running`` is its command, unless there is none, or this client may not see it.
    """

    status: messages.ShellStatus
    pid: int
    directory: str
    since: datetime
    running_since: datetime | None
    running: messages.RunningCommandInfo | None

    @property
    def command_seconds(self) -> float | None:
        """Seconds for which its command has run, None without a command."""
        if self.running_since is None:
            return None
        return max(0.0, self.status.uptime - (self.running_since - self.since).total_seconds())

    @classmethod
    def read(cls, members: Mapping[str, Any]) -> ListedShell:
        """Return what an answer says about a shell."""
        shell = messages.ListedShell.read(members)
        directory = shell.directory.decode(errors="surrogateescape")
        status = messages.ShellStatus.read(members)
        return cls(status, shell.pid, directory, shell.since, shell.running_since, shell.running)


class Shells(Group):
    """``/shell``; without a ``session``, the connection's own shell is used."""

    def start(self, connection: str, *, session: str | None = None) -> messages.ShellInfo:
        """Start a shell, unless one runs, and describe it."""
        return self._ask(
            "/shell/start", messages.StartRequest(connection=connection, session=session), messages.ShellInfo
        )

    def ensure(self, connection: str, *, session: str | None = None) -> bool:
        """Start a shell, unless one runs; return whether it had been lost, so that directory and variables are new."""
        request = messages.StartRequest(connection=connection, session=session, tell_restarted=True)
        return bool(self._ask("/shell/start", request, messages.ShellInfo).restarted)

    def exec(
        self, connection: str, command: str | None = None, *, stdin: str | None = None, **options: Unpack[Options]
    ) -> Result:
        """Run a command (:class:`Options`); raise :class:`connmgr.client.ClientError` if it does not run to its end."""
        if stdin is not None and len(stdin) > WHOLE_BYTES:
            return self.exec_bytes(connection, command, stdin=stdin.encode(), **options).as_text
        request = _exec(connection, command, stdin=stdin, **options)
        return Result.of(self._ask("/shell/exec", request, messages.ExecResponse))

    def exec_bytes(
        self, connection: str, command: str | None = None, *, stdin: Input | None = None, **options: Unpack[Options]
    ) -> RawResult:
        """Like :meth:`exec`, with input and output as bytes, and input as of :meth:`stream`.

        With input beyond 1 MiB, or from a file or an iterator, the output is collected here, without a limit.
        """
        if not is_whole(stdin):
            with self.stream(connection, command, stdin=stdin, **options) as stream:
                return stream.collect()
        request = _exec(
            connection, command, stdin=None if stdin is None else base64_of(stdin), encoding="base64", **options
        )
        return RawResult.of(self._ask("/shell/exec", request, messages.ExecResponse))

    def stream(
        self, connection: str, command: str | None = None, *, stdin: Input | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Run a command, and return its output as it comes, as :func:`connmgr.client.output.run` does."""
        return run(self._http, given_json(_exec(connection, command, **options)), stdin)

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
        """Run ``command`` in the login shell, or ``argv``, or the login shell, apart from the connection's shells.

        With ``tcp`` it is a stream from the remote host to that host and port. ``pty=True`` gives it a terminal of the
        kind ``term`` with ``columns`` and ``rows``. An error of its start is raised by the first read.
        """
        from connmgr.client.pipe import open_pipe

        request = messages.PipeRequest(
            connection=connection,
            command=command,
            argv=words_of(argv),
            saved=saved_of(saved),
            tcp=None if tcp is None else messages.Address(host=tcp[0], port=tcp[1]),
            **terminal,
        )
        return open_pipe(self._http, request)

    def broadcast(
        self,
        command: str | None = None,
        connections: Sequence[str] | None = None,
        *,
        stdin: str | None = None,
        **options: Unpack[BroadcastOptions],
    ) -> Broadcast[Outcome]:
        """Run a command on many connections (:class:`BroadcastOptions`), and return their outcomes as they come."""
        return self._broadcast(Outcome.of, _broadcast(command, connections, stdin=stdin, **options))

    def broadcast_bytes(
        self,
        command: str | None = None,
        connections: Sequence[str] | None = None,
        *,
        stdin: bytes | None = None,
        **options: Unpack[BroadcastOptions],
    ) -> Broadcast[RawOutcome]:
        """Like :meth:`broadcast`, with input and output as bytes."""
        request = _broadcast(
            command, connections, stdin=None if stdin is None else base64_of(stdin), encoding="base64", **options
        )
        return self._broadcast(RawOutcome.of, request)

    def _broadcast(
        self, read: Callable[[messages.BroadcastLine], AnyOutcome], request: messages.BroadcastRequest
    ) -> Broadcast[AnyOutcome]:
        response = self._http.open("/shell/broadcast", self._http.encode(**given_json(request)))
        # Closing the connection is what tells the daemon to kill the commands that still run.
        return Broadcast(response, read, self._http.close)

    def list(self, connection: str | None = None) -> list[ListedShell]:
        """Describe the running shells, of one connection or all."""
        answer = self._tell("/shell/list", messages.ListRequest(connection=connection))
        return [ListedShell.read(shell) for shell in answer["shells"]]

    def stop(self, connection: str, *, session: str | None = None, all: bool = False) -> None:
        """Stop a shell, or all shells of the connection."""
        self._tell("/shell/stop", messages.StopRequest(connection=connection, session=session, all=all))


def _exec(
    connection: str,
    command: str | None,
    *,
    argv: Sequence[str] | None = None,
    saved: Mapping[str, Any] | None = None,
    elevate: Mapping[str, str] | None = None,
    **options: Any,
) -> messages.ExecRequest:
    return messages.ExecRequest(
        connection=connection,
        command=command,
        argv=words_of(argv),
        saved=saved_of(saved),
        elevate=elevate_of(elevate),
        **_without_none(options),
    )


def _broadcast(
    command: str | None,
    connections: Sequence[str] | None,
    *,
    argv: Sequence[str] | None = None,
    saved: Mapping[str, Any] | None = None,
    elevate: Mapping[str, str] | None = None,
    connection: str | None = None,
    category: str | None = None,
    type: str | None = None,
    where: str | None = None,
    **options: Any,
) -> messages.BroadcastRequest:
    return messages.BroadcastRequest(
        command=command,
        argv=words_of(argv),
        saved=saved_of(saved),
        elevate=elevate_of(elevate),
        connections=list_of(connections),
        connection_filter=connection,
        category_filter=category,
        type_filter=type,
        where=where,
        **_without_none(options),
    )


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None; their defaults are not None for all."""
    return {name: value for name, value in options.items() if value is not None}


class Outcome(NamedTuple):
    """The outcome of a command on one connection: its result, or an error.

    ``name`` is the connection's path, empty if there is no such connection.
    """

    connection: str
    name: tuple[str, ...]
    seconds: float
    result: Result | ClientError

    @classmethod
    def of(cls, line: messages.BroadcastLine) -> Outcome:
        """Return the outcome that a line has, with output as text."""
        return cls(*_where(line), Result.of(line) if line.error is None else from_member(line.error))


class RawOutcome(NamedTuple):
    """Like :class:`Outcome`, with output as bytes."""

    connection: str
    name: tuple[str, ...]
    seconds: float
    result: RawResult | ClientError

    @property
    def failure(self) -> ClientError | None:
        """The error, None if the command ran to its end."""
        return self.result if isinstance(self.result, ClientError) else None

    @classmethod
    def of(cls, line: messages.BroadcastLine) -> RawOutcome:
        """Return the outcome that a line has, with output in base64."""
        return cls(*_where(line), RawResult.of(line) if line.error is None else from_member(line.error))


def _where(line: messages.BroadcastLine) -> tuple[str, tuple[str, ...], float]:
    if line.connection is None or line.ms is None:
        raise lacking("ms")
    return line.connection, tuple(line.name or ()), line.ms / 1000


AnyOutcome = TypeVar("AnyOutcome", Outcome, RawOutcome)


class Broadcast(Closeable, Generic[AnyOutcome]):
    """The outcomes on all connections, iterated as they come.

    It occupies the client's connection until the last outcome or :meth:`close`, for example by a context manager.
    Closing makes the daemon kill commands that still run.
    """

    def __init__(
        self, response: Response, read: Callable[[messages.BroadcastLine], AnyOutcome], close: Callable[[], None]
    ) -> None:
        self._response = response
        self._lines = lines_of(response)
        self._read: Callable[[messages.BroadcastLine], AnyOutcome] = read
        self._close = close
        self._whole = False

    def __iter__(self) -> Iterator[AnyOutcome]:
        """Yield the outcomes.

        :raises Unreachable: the answer broke off before the end.
        """
        while not self._whole:
            line = self._line()
            if line.connection is not None:
                yield self._read(line)
            else:
                self._whole = True
                # Read to the end, so that the next request can use the connection.
                self._response.read()

    def close(self) -> None:
        """Release the connection, and abandon outstanding outcomes."""
        if not self._whole:
            self._close()
        self._response.close()

    def _line(self) -> messages.BroadcastLine:
        try:
            members = json.loads(next(self._lines), object_hook=Answer)
        except (OSError, ValueError, EOFError, WireError, StopIteration) as error:
            raise self._broken() from error
        if not isinstance(members, Answer):
            raise self._broken()

        return messages.BroadcastLine.read(members)

    def _broken(self) -> Unreachable:
        self._close()
        return Unreachable("The connection broke before the last outcome.", sent=True)
