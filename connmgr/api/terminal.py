"""``/terminal``: programs on a terminal of the remote host, which run on while no client is attached."""

from __future__ import annotations

import base64
import codecs
import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial

from connmgr import errors
from connmgr.api.auth import Caller
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import caller, cancellation, continuation, detail, ground_of, note_forwarding
from connmgr.api.endpoint import Group
from connmgr.api.pipe import FRAMES
from connmgr.api.record import end_recorder
from connmgr.api.running import EXAMPLE, OPENING, program_of, sent_by, shown_waiting, with_words
from connmgr.api.services import services
from connmgr.api.stream_endpoint import Begin, StreamEndpoint
from connmgr.computing import give_way
from connmgr.contract.common import bytes_of
from connmgr.contract.terminal import (
    RUNNING,
    Cursor,
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
from connmgr.pipes.clients import Opening
from connmgr.plugin import Pty
from connmgr.rights.actions import Action, always
from connmgr.rights.authorisation import Work
from connmgr.shell.commands import state_of
from connmgr.suspension import Suspended
from connmgr.terminals.emulator.canvas import CURSOR
from connmgr.terminals.emulator.screen import Screen
from connmgr.terminals.recording import Recording
from connmgr.terminals.terminal import Terminal
from connmgr.terminals.terminals import CLOSE_SECONDS, TerminalSpec

TERMINAL = "8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2"

NEWS_SECONDS = 0.01
"""Output that comes within this time counts as one piece of news for waiting requests."""

LOOK_PAUSE_FACTOR = 5.0
"""A waiting request pauses for this multiple of the duration of its last look at the screen."""

LARGE_COLUMNS = 1024
"""The text of so wide a screen is put together in pieces."""

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
    has_content=True,
    action=Action(
        "terminal.open",
        runs=True,
        takes_input=True,
        in_shell=lambda request: request.session is not None,
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
def open(request: TerminalOpenRequest) -> TerminalInfo:
    """Open a terminal, and start its program.

    With `session` the program begins in the directory and with the exported variables of that shell, which must run. It
    changes neither, and does not wait for the shell's commands. Without `session` it begins as after a login.
    """
    access, session = caller().access, request.session
    surroundings, ground = None, ground_of(request.connection)
    if session is not None:
        with services().shells.using(request.connection, access, session) as running:
            surroundings = running.surroundings
            if ground is not None:
                # The program begins in exactly this state, even if the shell moves on.
                ground.require(running.connection_digest, state_of(surroundings))
    record_end = end_recorder()
    wanted = TerminalSpec(
        request.connection,
        Pty(request.term, request.columns, request.rows),
        command=request.command if request.argv is None else tuple(program_of(request.argv, request.env)),
        session=session,
        surroundings=surroundings,
        record=request.record,
        sent=sent_by(request) or {},
        token=caller().token,
        ground=ground,
        when_ended=lambda id, status: record_end(status, terminal=id),
    )
    terminal = services().terminals.open(wanted, access, cancellation())
    note_forwarding(terminal.lease.link.first)
    detail(terminal=terminal.origin.id, **({"recorded": True} if request.record else {}))
    return _info(terminal)


def _redeem(ticket: str, in_path: Mapping[str, str]) -> Caller:
    return services().tickets.redeem(ticket, in_path["terminal"])


@group.endpoint(
    "/attach/<terminal>",
    kind=StreamEndpoint,
    about=("terminal", "watch"),
    raises=[*FINDING, errors.UpgradeRequired, errors.BadFrame, errors.StreamLimit],
    redeems=_redeem,
    frames=FRAMES + " A terminal's size comes from the daemon too, at first and when it changes.",
)
def attach(request: TerminalAttachRequest) -> Begin:
    """Attach to a terminal: first comes the drawing of its screen, then new output. Data from the client is typed.

    The client that attached last without `watch` leads: it sets the size, and the program waits, 5 seconds at most,
    while that client has not acknowledged its output. For any other client that falls behind the screen is redrawn.
    Leaving does not end the terminal. A browser, which cannot send a token with a WebSocket, sends a ticket.
    """
    services().streams.require_room(caller().holder)
    terminal = _find(request)

    def begin(opening: Opening) -> None:
        terminal.attach(opening, watches=request.watch)

    return begin


@group.endpoint(
    "/ticket",
    about=("terminal",),
    raises=FINDING,
    example={"terminal": TERMINAL},
    answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc"},
)
def ticket(request: TerminalRequest) -> TerminalTicketResponse:
    """Return a ticket with which the caller may attach to a terminal: once, and within 30 seconds."""
    return TerminalTicketResponse(ticket=services().tickets.issue(_find(request).origin.id, caller()))


@group.endpoint(
    "/query",
    reads=True,
    about=("connectionFilter", "categoryFilter", "typeFilter"),
    example={"connectionFilter": "*"},
    answer={"terminals": [_INFO]},
)
def query(request: TerminalQueryRequest) -> TerminalQueryResponse:
    """List the terminals that run, and those that ended within the last 5 minutes."""
    filters = (request.category_filter, request.connection_filter, request.type_filter)
    chosen = None
    if filters != ("*", "*", "*") or request.where is not None:
        chosen = set(services().vault.connections.query(*filters, where=request.where))
    works = (
        (terminal, Work(terminal.origin.connection, terminal.origin.token)) for terminal in services().terminals.all()
    )
    visible = services().authorisation.visible_work(caller(), works)
    listed = [terminal for terminal in visible if chosen is None or terminal.origin.connection in chosen]
    _look(listed)
    hidden = locked_ones(terminal.origin.connection for terminal in listed)
    return TerminalQueryResponse(
        terminals=[_info(terminal, locked=terminal.origin.connection in hidden) for terminal in listed]
    )


@group.endpoint(
    "/input",
    has_content=True,
    about=("terminal",),
    raises=[*FINDING, errors.TerminalEnded],
    example={"terminal": TERMINAL, "data": "ls -l\r"},
)
def input(request: TerminalInputRequest) -> None:
    """Type into a terminal. The answer comes before the program reads it."""
    data = bytes_of(request.data, request.encoding)
    _find(request).input(data)
    detail(inputBytes=len(data))


@group.endpoint(
    "/output",
    suspends=True,
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
def output(request: TerminalOutputRequest) -> TerminalOutputResponse:
    """Return the output of a terminal from an offset on, control sequences included.

    The last 2 MiB are kept. With `wait` the answer comes with the next output, or empty.
    """
    terminal = _find(request)
    terminal.use()
    state = terminal.state
    offset, data = terminal.output.read(request.offset, request.max_bytes)
    if not data and state == RUNNING and continuation().is_younger_than(request.wait):
        raise Suspended(partial(terminal.subscribe, offset, state, NEWS_SECONDS), request.wait)
    eof = state != RUNNING and offset + len(data) >= terminal.output.end
    if request.encoding == "base64":
        text, rest = base64.b64encode(data).decode(), 0
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=eof)
        # What is left in the decoder begins a character; the next piece starts with it.
        rest = len(decoder.getstate()[0])
    return TerminalOutputResponse(
        data=text,
        offset=offset,
        next=offset + len(data) - rest,
        eof=eof,
        state=state,
        exit_code=terminal.exit_code,
    )


@group.endpoint(
    "/screen",
    suspends=True,
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
def screen(request: TerminalScreenRequest) -> TerminalScreenResponse:
    """Return the text on a terminal's screen.

    With `wait` the answer comes when there is output after `since` and the screen shows `contains`, or when the time is
    over.
    """
    terminal = _find(request)
    terminal.use()
    state = terminal.state
    wanted = request.contains or ""
    since = -1 if request.since is None else request.since
    _look([terminal])
    began = time.monotonic()
    with services().pace.turn(caller().holder), terminal.output.look() as (screen, offset):
        answer = TerminalScreenResponse(
            columns=screen.columns,
            rows=screen.rows,
            lines=_lines_of(screen),
            cursor=Cursor(column=screen.column, row=screen.y, visible=CURSOR in screen.modes),
            title=screen.title,
            alternate=screen.primary is not None,
            offset=offset,
            state=state,
            exit_code=terminal.exit_code,
            waiting=shown_waiting(terminal.waiting),
        )
        there = not wanted or any(wanted in "".join(row.text) for row in screen.grid.rows)
    if state == RUNNING and not (there and offset > since) and continuation().is_younger_than(request.wait):
        # Leaves most of the processor time to others during much output.
        pause = max(NEWS_SECONDS, LOOK_PAUSE_FACTOR * (time.monotonic() - began))
        raise Suspended(partial(terminal.subscribe, offset, state, pause), request.wait)
    return answer


def _lines_of(screen: Screen) -> list[str]:
    lines = []
    for row in screen.grid.rows:
        lines.append(row.shown)
        if screen.columns >= LARGE_COLUMNS:
            give_way()
    return lines


@group.endpoint(
    "/resize",
    about=("terminal",),
    raises=[*FINDING, errors.TerminalEnded],
    example={"terminal": TERMINAL, "columns": 132, "rows": 43},
)
def resize(request: TerminalResizeRequest) -> None:
    """Set the size of a terminal, until the leading client sets another."""
    _find(request).resize(request.columns, request.rows)


@group.endpoint("/close", about=("terminal",), raises=FINDING, example={"terminal": TERMINAL})
def close(request: TerminalRequest) -> None:
    """Close a terminal: its program gets HUP. A terminal that has ended stays as it is."""
    terminal = _find(request)
    terminal.close()
    # So that a client that looks after this answer finds it closed.
    terminal.wait(CLOSE_SECONDS)


def _look(terminals: Sequence[Terminal]) -> None:
    """Look whether silent terminals wait for input."""
    if not (silent := services().terminals.silent(terminals)):
        return
    # A daemon whose slots are all in use still lists its terminals, as it has last seen them.
    with contextlib.suppress(errors.Busy), services().slots.taken(caller().holder):
        services().terminals.look(silent)


def _find(request: TerminalRequest) -> Terminal:
    return services().terminals.find(request.terminal, caller().access)


def _info(terminal: Terminal, *, locked: bool = False) -> TerminalInfo:
    origin = terminal.origin
    return TerminalInfo(
        terminal=origin.id,
        connection=origin.connection,
        session=origin.session,
        command=None if locked else origin.command,
        locked=locked or None,
        term=origin.term,
        columns=terminal.output.columns,
        rows=terminal.output.rows,
        state=terminal.state,
        exit_code=terminal.exit_code,
        clients=terminal.clients,
        idle=round(terminal.idle_seconds, 1),
        opened=origin.opened,
        ended=terminal.ended,
        recording=_recording(terminal.recording, running=terminal.state == RUNNING),
        waiting=shown_waiting(terminal.waiting, locked=locked),
    )


def _recording(recording: Recording | None, *, running: bool) -> str | None:
    if recording is None:
        return None
    return {"limit": "cut", "error": "failed"}.get(recording.cut or "", "active" if running else "complete")
