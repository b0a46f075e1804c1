"""``/shell`` of the client: commands, their output, and the shells that run them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypedDict, TypeGuard

from connmgr.client.broadcast import Broadcast, Outcome, RawOutcome, Read
from connmgr.client.endpoints import Group, Post, given, what_runs
from connmgr.client.errors import Answer
from connmgr.client.http import HttpSession
from connmgr.client.results import ListedShell, RawResult, Result, ShellInfo
from connmgr.client.stream import LINES, Feeding, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from connmgr.client.pipe import Pipe


WHOLE_BYTES = 1 << 20
"""Most input that is sent with the request; more is streamed."""

PIECE_BYTES = 64 << 10

Input = bytes | IO[bytes] | Iterable[bytes]
"""The input of a command: all of it, a file, or pieces."""


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


class Shells(Group):
    """``/shell``; without a ``session``, the connection's own shell is used."""

    def __init__(self, post: Post, http: HttpSession) -> None:
        super().__init__(post)
        self._http = http

    def start(self, connection: str, *, session: str | None = None) -> ShellInfo:
        """Start a shell, unless one runs, and describe it."""
        return ShellInfo.read(self._post("/shell/start", connection=connection, **given(session=session)))

    def ensure(self, connection: str, *, session: str | None = None) -> bool:
        """Start a shell, unless one runs; return whether it had been lost, so that directory and variables are new."""
        answer = self._post("/shell/start", connection=connection, tellRestarted=True, **given(session=session))
        return bool(answer.get("restarted", False))

    def exec(
        self, connection: str, command: str | None = None, *, stdin: str | None = None, **options: Unpack[Options]
    ) -> Result:
        """Run a command (:class:`Options`); raise :class:`connmgr.client.ClientError` if it does not run to its end."""
        if stdin is not None and len(stdin) > WHOLE_BYTES:
            result = self.exec_bytes(connection, command, stdin=stdin.encode(), **options)
            return Result(
                result.exit_code,
                result.stdout.decode(errors="replace").removesuffix("\n"),
                result.stderr.decode(errors="replace").removesuffix("\n"),
                result.truncated,
                result.restarted,
            )
        return Result.read(self._post("/shell/exec", **_fields(connection, command, stdin=stdin, **options)))

    def exec_bytes(
        self, connection: str, command: str | None = None, *, stdin: Input | None = None, **options: Unpack[Options]
    ) -> RawResult:
        """Like :meth:`exec`, with input and output as bytes, and input as of :meth:`stream`.

        With input beyond 1 MiB, or from a file or an iterator, the output is collected here, without a limit.
        """
        if not _is_whole(stdin):
            with self.stream(connection, command, stdin=stdin, **options) as stream:
                return stream.collected()
        fields = _fields(connection, command, **_bytes(stdin), **options)
        return RawResult.read(self._post("/shell/exec", **fields))

    def stream(
        self, connection: str, command: str | None = None, *, stdin: Input | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Run a command, and return its output as it comes, in bytes without a limit; raises as :meth:`exec`.

        ``stdin`` is bytes, a file or an iterator of bytes, of any size. A file or iterator is read in another thread
        while the output is iterated, from the time that the command has begun until it ends, as fast as the command
        reads; what it raises, the iteration raises.
        """
        # It returns after the first output, or when a command with input has begun. Errors of a command that has begun
        # are raised by the iteration.
        if not _is_whole(stdin):
            assert stdin is not None, "no input is whole"  # noqa: S101
            head = self._http.encoded(encoding="base64", **_fields(connection, command, **options)) + b"\n"
            response, sender = self._http.open_body("/shell/exec", head, accept=LINES)
            return Stream(response, Feeding(sender, _pieces(stdin)))
        fields = _fields(connection, command, **_bytes(stdin), **options)
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
        """Run ``command`` in the login shell, or ``argv``, or the login shell, apart from the connection's shells.

        With ``tcp`` it is a stream from the far side to that host and port. ``pty=True`` gives it a terminal of the
        kind ``term`` with ``columns`` and ``rows``. An error of its start is raised by the first read.
        """
        from connmgr.client.pipe import open_pipe

        to = None if tcp is None else {"host": tcp[0], "port": tcp[1]}
        run = {**what_runs(command, argv, saved), **given(tcp=to, sendEnv=terminal.pop("send_env", None))}
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
        ``connections`` or the filters choose them, ``parallel`` at a time; ``start`` False starts no shells.
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
        """Like :meth:`broadcast`, with input and output as bytes."""
        fields = {"connections": connections, **_bytes(stdin)}
        return self._broadcast(RawOutcome.read, **what_runs(command, argv, saved), **fields, **options)

    def _broadcast(self, read: Callable[[Answer], Read], **fields: Any) -> Broadcast[Read]:
        sent = given(sendEnv=fields.pop("send_env", None))
        response = self._http.open("/shell/broadcast", self._http.encoded(**sent, **given(**fields)))
        return Broadcast(response, read, self._http.close)

    def list(self, connection: str | None = None) -> list[ListedShell]:
        """Describe the running shells, of one connection or all."""
        found = self._post("/shell/list", **given(connection=connection))["shells"]
        return [ListedShell.read(one) for one in found]

    def stop(self, connection: str, *, session: str | None = None, all: bool = False) -> None:
        """Stop a shell, or all shells of the connection."""
        options = {"all": True} if all else {}
        self._post("/shell/stop", connection=connection, **given(session=session), **options)


def _fields(
    connection: str,
    command: str | None,
    *,
    argv: Sequence[str] | None = None,
    saved: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    sent = given(sendEnv=options.pop("send_env", None))
    return {"connection": connection, **what_runs(command, argv, saved), **sent, **given(**options)}


def _is_whole(stdin: Input | None) -> TypeGuard[bytes | None]:
    """Whether input can be sent with the request."""
    return stdin is None or (isinstance(stdin, bytes) and len(stdin) <= WHOLE_BYTES)


def _pieces(stdin: Input) -> Iterator[bytes]:
    if isinstance(stdin, bytes):
        return (stdin[start : start + PIECE_BYTES] for start in range(0, len(stdin), PIECE_BYTES))
    # A buffered reader's read1 returns what a pipe has, where read would wait for more.
    read = getattr(stdin, "read1", None) or getattr(stdin, "read", None)
    return iter(stdin) if read is None else iter(lambda: read(PIECE_BYTES), b"")


def _bytes(stdin: bytes | None) -> dict[str, str | None]:
    """Return the fields of a command with bytes as input and output."""
    return {"encoding": "base64", "stdin": None if stdin is None else base64.b64encode(stdin).decode()}
