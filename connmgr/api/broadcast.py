"""``/shell/broadcast``: one command on many connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import flask
from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr import errors
from connmgr.api import output
from connmgr.api.account import Account, account, caller, cancellation
from connmgr.api.answer import as_lines
from connmgr.api.command import with_words
from connmgr.api.command_fields import CommandFields, command_of, printed_until
from connmgr.api.elevate import MEMBER, each_elevated
from connmgr.api.errors import as_error, body_of
from connmgr.api.group import Group
from connmgr.api.schemas import ELEVATE, AwaitsApproval, Elevate, Filter, Id, Ids
from connmgr.api.services import services
from connmgr.api.shell_schemas import OwnShell, Restarted, ShellName
from connmgr.engine.running import Result
from connmgr.fields import Boolean, Integer, Schema
from connmgr.rights.action import Action, always
from connmgr.rights.command_rules import GROUNDS
from connmgr.shell.broadcast import Broadcast, BroadcastOutcome, Order
from connmgr.vault import Connection
from connmgr.vault.elevated import base_of

MAX_CONNECTIONS = 1000
MAX_PARALLEL = 128
FILTERS = ("categoryFilter", "connectionFilter", "typeFilter")

group = Group("broadcast", "Commands on many connections at once.", prefix="/shell")

Stored = dict[str, Connection | errors.IntegrityError]


class BroadcastRequest(CommandFields, OwnShell, AwaitsApproval):
    session = ShellName(
        metadata={"description": "The name of a further shell of each connection. Without it: the connection's own."}
    )
    connections = Ids(metadata={"description": f"The connections that run it, at most {MAX_CONNECTIONS:,}, each once."})
    connectionFilter = Filter(
        metadata={
            "description": "In place of `connections`: a filter for the path, as in `/connection/query`. An omitted "
            "filter means `*`. Connections whose type has no shells are skipped."
        }
    )
    categoryFilter = Filter(metadata={"description": "A filter for the path of the category."})
    typeFilter = Filter(metadata={"description": "A filter for the type."})
    elevate = Elevate(metadata={"description": ELEVATE})
    parallel = Integer(
        load_default=32,
        validate=validate.Range(min=1, max=MAX_PARALLEL),
        metadata={"description": "How many connections run the command at a time. Without it: 32."},
    )
    start = Boolean(
        load_default=True,
        metadata={
            "description": "True starts shells that do not run or are lost. Otherwise their connections get `no_shell` "
            "or `shell_lost`."
        },
    )

    @validates_schema
    def check_selection(self, data: dict[str, Any], **_: Any) -> None:
        given = [name for name in FILTERS if name in data]
        if "connections" not in data and not given:
            raise ValidationError("Missing, and so is any filter.", "connections")
        if "connections" in data and given:
            raise ValidationError("Given beside connections; use one of them.", given[0])


class BroadcastLine(Schema):
    connection = Id(metadata={"description": "The connection's uuid. Not in the last line."})
    name = fields.List(
        fields.String(),
        allow_none=True,
        metadata={
            "description": "The connection's path, as in `/connection/info`; null if there is no such connection."
        },
    )
    exitCode = fields.Integer(metadata={"description": "The command's exit code, as in `/shell/exec`."})
    stdout = fields.String(metadata={"description": "Its standard output."})
    stderr = fields.String(metadata={"description": "Its standard error."})
    truncated = fields.Boolean(
        metadata={"description": "Present, and true, if output beyond `max-output` was dropped."}
    )
    restarted = Restarted()
    error = fields.Dict(
        metadata={
            "description": "In place of `exitCode`: why the command did not run to its end, with `code`, `message` and "
            "further members, like an error of `/shell/start` or `/shell/exec`."
        }
    )
    ms = fields.Float(metadata={"description": "Milliseconds from the command's turn to its end."})
    connections = fields.Integer(metadata={"description": "In the last line: how many connections there were."})
    succeeded = fields.Integer(metadata={"description": "In the last line: how many commands exited with 0."})
    failed = fields.Integer(metadata={"description": "In the last line: how many commands exited with another code."})
    errors = fields.Integer(metadata={"description": "In the last line: how many connections have an `error`."})


def select(request: dict[str, Any]) -> dict[str, Any]:
    """Return ``request`` with its ``connections`` resolved, each once, and their rows as ``stored``."""
    vault = services().vault.connections
    if "connections" in request:
        ids = list(dict.fromkeys(request["connections"]))
    else:
        ids = services().authorisation.visible(caller(), vault.query(*(request.get(name, "*") for name in FILTERS)))
    if len(ids) > MAX_CONNECTIONS:
        raise errors.InvalidRequest(f"{len(ids):,} connections; a broadcast takes {MAX_CONNECTIONS:,} at most.")
    bases = ids
    if MEMBER in request:
        named = each_elevated(ids, request[MEMBER])
        request, ids = (
            {name: value for name, value in request.items() if name != MEMBER} | {"named": named},
            list(named),
        )
    stored = vault.each(ids)
    if "connections" not in request:
        # An elevated connection has the type of a shell, whatever it runs over.
        kinds = vault.each(bases) if "named" in request else stored
        with_shells = {entry.type.name for entry in services().registry if entry.type.usage_category == "shell"}
        ids = [id for id in ids if not isinstance(one := kinds.get(base_of(id)), Connection) or one.type in with_shells]
    return {**with_words(request), "connections": ids, "stored": stored}


@group.endpoint(
    "/broadcast",
    BroadcastRequest,
    lines=BroadcastLine(),
    has_content=True,
    action=Action("shell.broadcast", runs=True, in_shell=always),
    about=("connections", "session", "command", "argv"),
    selects=select,
    raises=[errors.IntegrityError, errors.UnknownCommand],
    waits=True,
    example={"connectionFilter": "web*", "command": "uptime", "timeout": 10},
)
def broadcast(request: dict[str, Any]) -> flask.Response:
    """Run a command in the shells of many connections.

    The answer is `application/x-ndjson`: one line for each connection as soon as its command has ended, and a last line
    with the counts. A failed or unknown connection gets a line with an `error`. Running shells begin before shells that
    must be started. The request is authorised once for all its connections, and takes one slot. A client that closes
    its connection kills the commands that still run.
    """
    found, ids, stored = services(), request["connections"], request["stored"]
    order = Order(
        command_of(request),
        request.get("timeout", found.settings.command_timeout),
        request["parallel"],
        request["start"],
        request.get("session"),
        request["fresh"],
        request.get(GROUNDS, {}),
    )
    sound = [one for one in stored.values() if isinstance(one, Connection)]
    running = [] if order.fresh else found.shells.admitted(sound, caller().access, order.session)
    ready = dict.fromkeys(one.id for one in running)
    # All in one transaction, because each transaction costs an fsync.
    found.vault.connections.touch(*ready)
    others = [one.id for one in sound if one.id not in ready]
    work = Broadcast(found.shells, caller().access, order, ready, others)
    forwards = partial(found.shells.forward_agent, ids, order.session)
    lines = _Lines(account(), stored, request["encoding"], request.get("named", {}), forwards)
    return as_lines(lines.all(ids, work.outcomes(cancellation())))


class _Lines:
    """The lines of an answer; the counts are recorded in the request's account."""

    def __init__(
        self,
        known: Account,
        stored: Stored,
        encoding: str,
        named: Mapping[str, str],
        forwards: Callable[[], bool],
    ) -> None:
        self._forwards = forwards
        self._known = known
        self._stored = stored
        self._encoding = encoding
        # The ids by which the request named its connections, where they are others.
        self._named = named
        self._counts = dict.fromkeys(("connections", "succeeded", "failed", "errors"), 0)

    def all(self, ids: list[str], outcomes: Iterator[list[BroadcastOutcome]]) -> Iterator[Iterable[dict[str, Any]]]:
        """Yield the lines for all connections of ``ids``, in bursts, and then the counts."""
        # This code stands unless all lines were sent.
        self._known.code = errors.CommandCancelled.code
        try:
            yield map(self._line, self._refused(ids))
            for ended in outcomes:
                yield map(self._line, ended)
            self._known.code = None
            yield [self._counts]
        except errors.CommandCancelled:
            return
        except Exception as error:  # noqa: BLE001 - the status is sent; an answer without counts is not whole
            self._known.code = as_error(error, self._known).code
        finally:
            if self._forwards():
                self._known.details["agentForwarded"] = True
            # The account already has `connections`, with all ids.
            self._known.details.update({name: self._counts[name] for name in ("succeeded", "failed", "errors")})

    def _refused(self, ids: list[str]) -> Iterator[BroadcastOutcome]:
        """Yield the outcomes for connections that do not exist, or were tampered with."""
        for id in ids:
            stored = self._stored.get(id)
            if not isinstance(stored, Connection):
                yield BroadcastOutcome(id, 0.0, stored or errors.UnknownConnection(id))

    def _line(self, outcome: BroadcastOutcome) -> dict[str, Any]:
        stored, result = self._stored.get(outcome.connection), outcome.result
        name = list(stored.path) if isinstance(stored, Connection) else None
        if isinstance(result, Result):
            shown = self._shown(result, restarted=outcome.restarted)
        else:
            shown = {"error": self._error(result)}
        self._counts["connections"] += 1
        self._counts["errors" if "error" in shown else "failed" if shown["exitCode"] else "succeeded"] += 1
        id = self._named.get(outcome.connection, outcome.connection)
        return {"connection": id, "name": name, **shown, "ms": round(outcome.seconds * 1000, 3)}

    def _shown(self, result: Result, *, restarted: bool) -> dict[str, Any]:
        texts = {
            "stdout": output.shown(result.stdout, self._encoding),
            "stderr": output.shown(result.stderr, self._encoding),
        }
        found = {"truncated": result.truncated, "restarted": restarted}
        return {"exitCode": result.exit_code, **texts, **{name: True for name, is_so in found.items() if is_so}}

    def _error(self, exception: BaseException) -> dict[str, Any]:
        error = as_error(exception, self._known)
        if isinstance(error, errors.CommandTimeout):
            error.details |= printed_until(error, self._encoding)
        body = body_of(error)
        shown: dict[str, Any] = body.get("error", body)
        return shown
