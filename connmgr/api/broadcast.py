"""``/shell/broadcast``: one command on many connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import flask

from connmgr import errors
from connmgr.api.answer import as_lines, output_text
from connmgr.api.context import RequestContext, caller, cancellation, request_context
from connmgr.api.endpoint import Group
from connmgr.api.errors import as_error, body_of
from connmgr.api.running import command_of, printed_until, with_words
from connmgr.api.selection import each_elevated, selected, with_shells
from connmgr.api.services import EXTENSION, services
from connmgr.contract.message import replace
from connmgr.contract.shell import MAX_CONNECTIONS, BroadcastLine, BroadcastRequest
from connmgr.engine.running import Result
from connmgr.rights.actions import Action, always
from connmgr.rights.ground import SEND_AGAIN
from connmgr.shell.broadcast import Broadcast, BroadcastOutcome, Order
from connmgr.vault import Connection
from connmgr.vault.names import base_of

BROADCAST = Action("shell.broadcast", runs=True, in_shell=always)

group = Group("broadcast", "Commands on many connections at once.", prefix="/shell")

Asked = TypeVar("Asked", bound=BroadcastRequest)

Stored = dict[str, Connection | errors.IntegrityError]


@dataclass(frozen=True)
class Selection:
    """The connections of a request as they are stored; ``named`` has the ids that it used for elevated ones."""

    stored: Stored
    named: Mapping[str, str] = field(default_factory=dict)


def resolve(request: Asked, most: int, what: str) -> Asked:
    """Return ``request`` with its ``connections`` resolve, each once; their rows are the context's selection.

    :raises InvalidRequest: they are more than ``most``, which is what ``what`` takes.
    """
    vault, named = services().vault.connections, None
    ids = selected(request, most=most, what=what)
    bases = ids
    if request_context().elevation is not None:
        named = each_elevated(ids, request_context().elevation)
        ids = list(named)
    stored = vault.each(ids)
    if request.connections is None:
        # An elevated connection has the type of a shell, whatever it runs over.
        suited = with_shells(stored if named is None else vault.each(bases))
        ids = [id for id in ids if base_of(id) in suited]
    request_context().selection = Selection(stored, named or {})
    return with_words(replace(request, connections=ids, elevate=None))


@group.endpoint(
    "/broadcast",
    lines=BroadcastLine,
    has_content=True,
    action=BROADCAST,
    about=("connections", "session", "command", "argv"),
    selects=lambda request: resolve(request, MAX_CONNECTIONS, "a broadcast"),
    raises=[errors.UnknownConnection, errors.IntegrityError, errors.UnknownCommand],
    waits=True,
    example={"connectionFilter": "web*", "command": "uptime", "timeout": 10},
)
def broadcast(request: BroadcastRequest) -> flask.Response:
    """Run a command in the shells of many connections.

    The answer is `application/x-ndjson`: one line for each connection as soon as its command has ended, and a last line
    with the counts. A failed or unknown connection gets a line with an `error`; to a token, one that is unknown or out
    of its sight is an error of the whole request. Running shells begin before shells that must be started. The request
    is authorised once for all its connections, and takes one slot. A client that closes its connection kills the
    commands that still run.
    """
    ids, selection, timeout = request.connections or [], request_context().selection, request.timeout
    shells, access = services().shells, caller().access
    order = Order(
        command_of(request),
        services().settings.command_timeout if timeout is None else timeout,
        request.parallel,
        request.start,
        request.session,
        request.fresh,
        request_context().grounds,
    )
    if (grant := caller().grant) is not None:
        # Its shells are started in other threads, which know no request.
        request_context().loan = services().loans.of(grant.lineage_ids)
    sound = [row for row in selection.stored.values() if isinstance(row, Connection)]
    running = [] if order.fresh else shells.admitted(sound, access, order.session)
    ready = dict.fromkeys(connection.id for connection in running)
    # All in one transaction, because each transaction costs an fsync.
    services().vault.connections.touch(*ready)
    others = [connection.id for connection in sound if connection.id not in ready]
    work = Broadcast(shells, access, order, ready, others)
    forwards = partial(shells.forward_agent, ids, order.session)
    ask_again = partial(_asked_again, flask.current_app.app_context(), request_context(), request_context().requested)
    lines = _Lines(request_context(), selection, request.encoding, forwards, ask_again)
    return as_lines(lines.all(ids, work.outcomes(cancellation())))


def _asked_again(
    application: flask.ctx.AppContext,
    context: RequestContext,
    request: BroadcastRequest,
    connection: str,
    moved: errors.ApprovalRequired,
) -> Exception:
    """Return the error of a ``connection`` whose ground has ``moved`` since the approval of what was ``asked``.

    The same is asked for that connection alone, on its ground of now, so that the error names an approval.
    """
    daemon = application.app.extensions[EXTENSION]
    with application:
        flask.g.context = context
        try:
            # A person is asked, and not waited for: the other lines are on their way.
            again = replace(request, connections=[connection], wait=0)
            permitted = daemon.authorisation.check(caller(), BROADCAST, again)
            # It was approved for this connection already, and is not begun here.
            daemon.approvals.give_back()
            return errors.ApprovalRequired(moved.message, **permitted.reasons)
        except errors.ApprovalRequired as error:
            error.message = f"{moved.message.removesuffix(SEND_AGAIN)} {error.message}"
            return error
        except Exception as error:  # noqa: BLE001 - it is told in the connection's line
            return error


class _Lines:
    """The lines of an answer; the counts are recorded in the request's context."""

    def __init__(
        self,
        context: RequestContext,
        selection: Selection,
        encoding: str,
        forwards: Callable[[], bool],
        ask_again: Callable[[str, errors.ApprovalRequired], Exception],
    ) -> None:
        self._forwards = forwards
        self._ask_again = ask_again
        self._context = context
        self._stored = selection.stored
        self._encoding = encoding
        self._named = selection.named
        self._counts = dict.fromkeys(("connections", "succeeded", "failed", "errors"), 0)
        self._exit_codes: dict[str, int] = {}

    def all(self, ids: list[str], outcomes: Iterator[list[BroadcastOutcome]]) -> Iterator[Iterable[dict[str, Any]]]:
        """Yield the lines for all connections of ``ids``, in bursts, and then the counts."""
        # This code stands unless all lines were sent.
        self._context.code = errors.CommandCancelled.code
        try:
            yield map(self._line, self._failures(ids))
            for ended in outcomes:
                yield map(self._line, ended)
            self._context.code = None
            yield [self._counts]
        except errors.CommandCancelled as error:
            # If its token was revoked, or its loan is over, the client still reads: it sees an answer without counts.
            self._context.code = as_error(error, self._context).code
        except Exception as error:  # noqa: BLE001 - the status is sent; an answer without counts is not whole
            self._context.code = as_error(error, self._context).code
        finally:
            if self._forwards():
                self._context.details["agentForwarded"] = True
            # The context already has `connections`, with all ids.
            self._context.details.update({name: self._counts[name] for name in ("succeeded", "failed", "errors")})
            self._context.details["exitCodes"] = [self._exit_codes.get(id) for id in ids]

    def _failures(self, ids: list[str]) -> Iterator[BroadcastOutcome]:
        """Yield the outcomes for connections that do not exist, or were tampered with."""
        for id in ids:
            stored = self._stored.get(id)
            if not isinstance(stored, Connection):
                yield BroadcastOutcome(id, 0.0, stored or errors.UnknownConnection(id))

    def _line(self, outcome: BroadcastOutcome) -> dict[str, Any]:
        stored, result = self._stored.get(outcome.connection), outcome.result
        name = list(stored.path) if isinstance(stored, Connection) else None
        if isinstance(result, Result):
            self._exit_codes[outcome.connection] = result.exit_code
            shown = self._shown(result, restarted=outcome.restarted)
        else:
            if isinstance(result, errors.ApprovalRequired) and "approval" not in result.details:
                result = self._ask_again(outcome.connection, result)
            shown = {"error": self._error(result)}
        self._counts["connections"] += 1
        self._counts["errors" if "error" in shown else "failed" if shown["exitCode"] else "succeeded"] += 1
        id = self._named.get(outcome.connection, outcome.connection)
        return {"connection": id, "name": name, **shown, "ms": round(outcome.seconds * 1000, 3)}

    def _shown(self, result: Result, *, restarted: bool) -> dict[str, Any]:
        texts = {
            "stdout": output_text(result.stdout, self._encoding),
            "stderr": output_text(result.stderr, self._encoding),
        }
        flags = {"truncated": result.truncated, "restarted": restarted}
        return {"exitCode": result.exit_code, **texts, **{name: True for name, is_so in flags.items() if is_so}}

    def _error(self, exception: BaseException) -> dict[str, Any]:
        error = as_error(exception, self._context)
        if isinstance(error, errors.CommandTimeout):
            error.details |= printed_until(error, self._encoding)
        body = body_of(error)
        shown: dict[str, Any] = body.get("error", body)
        return shown
