"""``/terminal``: programs on a terminal of the far side, which run on while no client is attached."""

from __future__ import annotations

import base64
import codecs
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from connmgr import errors
from connmgr.api.account import caller, cancellation, detail, note_forwarding, turns
from connmgr.api.auth import Caller
from connmgr.api.command import with_words
from connmgr.api.command_fields import program_of, sent_by
from connmgr.api.connection_info import locked_ones
from connmgr.api.group import Group
from connmgr.api.pipe import FRAMES
from connmgr.api.record import end_recorder
from connmgr.api.services import services
from connmgr.api.shell import EXAMPLE, OPENING
from connmgr.api.stream_endpoint import Begin, StreamEndpoint
from connmgr.api.terminal_schemas import (
    TerminalAttachRequest,
    TerminalInfo,
    TerminalInputRequest,
    TerminalOpenRequest,
    TerminalOutputRequest,
    TerminalOutputResponse,
    TerminalQueryRequest,
    TerminalQueryResponse,
    TerminalRequest,
    TerminalResizeRequest,
    TerminalScreenRequest,
    TerminalScreenResponse,
    TerminalTicketResponse,
)
from connmgr.plugin import Pty
from connmgr.rights.action import Action, always
from connmgr.rights.command_rules import ground_of
from connmgr.rights.subjects import Work
from connmgr.shell.grounds import state_of
from connmgr.streams.opening import Opening
from connmgr.terminals.emulator.canvas import CURSOR
from connmgr.terminals.emulator.screen import Screen
from connmgr.terminals.recording import Recording
from connmgr.terminals.terminal import RUNNING, Terminal
from connmgr.terminals.terminals import CLOSE_SECONDS, TerminalSpec

TERMINAL = "8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2"

NEWS_SECONDS = 0.01
"""Output that comes within this time counts as one piece of news for waiting requests."""

LOOK_PAUSE_FACTOR = 5.0
"""A waiting request pauses for this multiple of the duration of its last look at the screen."""

FINDING = (errors.UnknownTerminal, errors.SecretLocked, errors.IntegrityError)
"""Errors of looking up a terminal."""

group = Group(
    "terminal",
    "Programs on a terminal: editors, pagers, `top`, shells. A terminal runs on for 24 hours "
    "(`terminal-timeout`) while no client is attached, and ends with its link. Many clients may attach "
    "(`/terminal/attach/{terminal}`), read its output, look at its screen and type.",
)

_INFO = {
    "terminal": TERMINAL,
    "connection": EXAMPLE,
    "session": None,
    "command": "htop",
    "term": "xterm-256color",
    "columns": 80,
    "rows": 24,
    "state": "running",
    "exitCode": None,
    "clients": 1,
    "idle": 0.0,
    "opened": "2026-01-31T08:15:00.000000Z",
    "ended": None,
    "recording": None,
}


@group.endpoint(
    "/open",
    TerminalOpenRequest,
    TerminalInfo,
    has_content=True,
    action=Action(
        "terminal.open",
        runs=True,
        takes_input=True,
        in_shell=lambda request: request.get("session") is not None,
        on_terminal=always,
    ),
    about=("connection", "session", "command", "argv"),
    selects=with_words,
    raises=[
        *OPENING,
        errors.UnknownCommand,
        errors.NoShell,
        errors.ShellLost,
        errors.ShellBusy,
        errors.TerminalLimit,
        errors.RecordingFailed,
    ],
    waits=True,
    example={"connection": EXAMPLE, "command": "htop", "columns": 80, "rows": 24},
    answer=_INFO | {"clients": 0},
)
def open(request: dict[str, Any]) -> dict[str, Any]:
    """Open a terminal, and start its program.

    With `session` the program begins in the directory and with the exported variables of that shell, which must run. It
    changes neither, and does not wait for the shell's commands. Without `session` it begins as after a login.
    """
    found, access, session = services(), caller().access, request.get("session")
    surroundings, ground = None, ground_of(request)
    if session is not None:
        with found.shells.using(request["connection"], access, session) as running:
            surroundings = running.surroundings
            if ground is not None:
                # The program begins in exactly this state, even if the shell moves on.
                ground.require(running.way, state_of(surroundings))
    record_end = end_recorder()
    wanted = TerminalSpec(
        request["connection"],
        Pty(request["term"], request["columns"], request["rows"]),
        command=tuple(program_of(request)) if "argv" in request else request.get("command"),
        session=session,
        surroundings=surroundings,
        record=request["record"],
        sent=sent_by(request) or {},
        token=caller().token,
        ground=ground,
        when_ended=lambda id, status: record_end(status, terminal=id),
    )
    terminal = found.terminals.open(wanted, access, cancellation())
    note_forwarding(terminal.lease.link.first)
    detail(terminal=terminal.origin.id, **({"recorded": True} if request["record"] else {}))
    return _info(terminal)


def _redeemed(ticket: str, in_path: Mapping[str, Any]) -> Caller:
    return services().tickets.redeem(ticket, in_path["terminal"])


@group.endpoint(
    "/attach/<terminal>",
    TerminalAttachRequest,
    kind=StreamEndpoint,
    action="terminal.attach",
    about=("terminal", "watch"),
    raises=[*FINDING, errors.UpgradeRequired, errors.BadFrame, errors.StreamLimit],
    redeems=_redeemed,
    frames=FRAMES + " A terminal's size comes from the daemon too, at first and when it changes.",
)
def attach(request: dict[str, Any]) -> Begin:
    """Attach to a terminal: first comes the drawing of its screen, then new output. Data from the client is typed.

    The client that attached last without `watch` leads: it sets the size, and the program waits, 5 seconds at most,
    while that client has not acknowledged its output. For any other client that falls behind the screen is redrawn.
    Leaving does not end the terminal. A browser, which cannot send a token with a WebSocket, sends a ticket.
    """
    found = services()
    found.streams.require_room(caller().holder)
    terminal = _found(request)

    def begin(opening: Opening) -> None:
        terminal.attach(opening, watches=request["watch"])

    return begin


@group.endpoint(
    "/ticket",
    TerminalRequest,
    TerminalTicketResponse,
    action="terminal.ticket",
    about=("terminal",),
    raises=FINDING,
    example={"terminal": TERMINAL},
    answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc"},
)
def ticket(request: dict[str, Any]) -> dict[str, Any]:
    """Return a ticket with which the caller may attach to a terminal: once, and within 30 seconds."""
    return {"ticket": services().tickets.issue(_found(request).origin.id, caller())}


@group.endpoint(
    "/query",
    TerminalQueryRequest,
    TerminalQueryResponse,
    action="terminal.query",
    reads=True,
    about=("connectionFilter", "categoryFilter", "typeFilter"),
    example={"connectionFilter": "*"},
    answer={"terminals": [_INFO]},
)
def query(request: dict[str, Any]) -> dict[str, Any]:
    """List the terminals that run, and those that ended within the last 5 minutes."""
    filters = [request[name] for name in ("categoryFilter", "connectionFilter", "typeFilter")]
    chosen = None if filters == ["*"] * 3 else set(services().vault.connections.query(*filters))
    works = ((one, Work(one.origin.connection, one.origin.token)) for one in services().terminals.all())
    found = services().authorisation.visible_work(caller(), works)
    shown = [one for one in found if chosen is None or one.origin.connection in chosen]
    hidden = locked_ones(one.origin.connection for one in shown)
    return {"terminals": [_info(one, locked=one.origin.connection in hidden) for one in shown]}


@group.endpoint(
    "/input",
    TerminalInputRequest,
    has_content=True,
    action="terminal.input",
    about=("terminal",),
    raises=[*FINDING, errors.TerminalEnded],
    example={"terminal": TERMINAL, "data": "ls -l\r"},
)
def input(request: dict[str, Any]) -> None:
    """Type into a terminal. The answer comes before the program reads it."""
    data = base64.b64decode(request["data"]) if request["encoding"] == "base64" else request["data"].encode()
    _found(request).input(data)
    detail(inputBytes=len(data))


@group.endpoint(
    "/output",
    TerminalOutputRequest,
    TerminalOutputResponse,
    action="terminal.output",
    reads=True,
    about=("terminal",),
    raises=FINDING,
    example={"terminal": TERMINAL, "offset": 0, "wait": 25},
    answer={
        "data": "$ ls -l\r\ntotal 0\r\n$ ",
        "offset": 0,
        "next": 20,
        "eof": False,
        "state": "running",
        "exitCode": None,
    },
)
def output(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a terminal from an offset on, control sequences included.

    The last 2 MiB are kept. With `wait` the answer comes with the next output, or empty.
    """
    terminal = _found(request)
    terminal.use()
    state = terminal.state
    offset, data = terminal.output.read(request["offset"], request["maxBytes"])
    if not data and state == RUNNING:
        turns().wait(partial(terminal.subscribe, offset, state, NEWS_SECONDS), request["wait"])
    eof = state != RUNNING and offset + len(data) >= terminal.output.end
    if request["encoding"] == "base64":
        text, rest = base64.b64encode(data).decode(), 0
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=eof)
        rest = len(decoder.getstate()[0])
    return {
        "data": text,
        "offset": offset,
        "next": offset + len(data) - rest,
        "eof": eof,
        "state": state,
        "exitCode": terminal.exit_code,
    }


@group.endpoint(
    "/screen",
    TerminalScreenRequest,
    TerminalScreenResponse,
    action="terminal.screen",
    reads=True,
    about=("terminal",),
    raises=FINDING,
    example={"terminal": TERMINAL, "contains": "$ ", "wait": 10},
    answer={
        "columns": 80,
        "rows": 3,
        "lines": ["$ echo hello", "hello", "$"],
        "cursor": {"column": 2, "row": 2, "visible": True},
        "title": "",
        "alternate": False,
        "offset": 24,
        "state": "running",
        "exitCode": None,
    },
)
def screen(request: dict[str, Any]) -> dict[str, Any]:
    """Return the text on a terminal's screen.

    With `wait` the answer comes when there is output after `since` and the screen shows `contains`, or when the time is
    over.
    """
    terminal = _found(request)
    terminal.use()
    state = terminal.state
    wanted = request.get("contains", "")
    began = time.monotonic()
    with terminal.output.look() as (seen, offset):
        shown = _shown(seen)
        there = any(wanted in "".join(row.text) for row in seen.grid.rows)
    if state == RUNNING and not (there and offset > request.get("since", -1)):
        # Leaves most of the processor time to others during much output.
        pause = max(NEWS_SECONDS, LOOK_PAUSE_FACTOR * (time.monotonic() - began))
        turns().wait(partial(terminal.subscribe, offset, state, pause), request["wait"])
    return {**shown, "offset": offset, "state": state, "exitCode": terminal.exit_code}


@group.endpoint(
    "/resize",
    TerminalResizeRequest,
    action="terminal.resize",
    about=("terminal",),
    raises=[*FINDING, errors.TerminalEnded],
    example={"terminal": TERMINAL, "columns": 132, "rows": 43},
)
def resize(request: dict[str, Any]) -> None:
    """Set the size of a terminal, until the leading client sets another."""
    _found(request).resize(request["columns"], request["rows"])


@group.endpoint(
    "/close",
    TerminalRequest,
    action="terminal.close",
    about=("terminal",),
    raises=FINDING,
    example={"terminal": TERMINAL},
)
def close(request: dict[str, Any]) -> None:
    """Close a terminal: its program gets HUP. A terminal that has ended stays as it is."""
    terminal = _found(request)
    terminal.close()
    terminal.wait(CLOSE_SECONDS)


def _found(request: Mapping[str, Any]) -> Terminal:
    return services().terminals.find(request["terminal"], caller().access)


def _info(terminal: Terminal, *, locked: bool = False) -> dict[str, Any]:
    origin = terminal.origin
    return {
        "terminal": origin.id,
        "connection": origin.connection,
        "session": origin.session,
        "command": origin.command,
        "term": origin.term,
        "columns": terminal.output.columns,
        "rows": terminal.output.rows,
        "state": terminal.state,
        "exitCode": terminal.exit_code,
        "clients": terminal.clients,
        "idle": round(terminal.idle_seconds, 1),
        "opened": origin.opened,
        "ended": terminal.ended,
        "recording": _recording(terminal.recording, running=terminal.state == RUNNING),
    } | ({"command": None, "locked": True} if locked else {})


def _recording(recording: Recording | None, *, running: bool) -> str | None:
    if recording is None:
        return None
    return {"limit": "cut", "error": "failed"}.get(recording.cut or "", "active" if running else "complete")


def _shown(screen: Screen) -> dict[str, Any]:
    return {
        "columns": screen.columns,
        "rows": screen.rows,
        "lines": screen.grid.lines,
        "cursor": {"column": screen.column, "row": screen.y, "visible": CURSOR in screen.modes},
        "title": screen.title,
        "alternate": screen.primary is not None,
    }
