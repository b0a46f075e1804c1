"""``/terminal``: programs on a terminal of a machine, which run on while no client is attached."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final

from connmgr.contract.common import Encoding, SendsEnvironment, ShellNamed, Waits, WhatRuns, Where, check_base64
from connmgr.contract.job import MIN_BYTES, OFFSET, WAIT, WORDS
from connmgr.contract.message import FILTER, ID, INTERNAL, NUL, Length, Message, Range, SchemaMembers, Wrong
from connmgr.contract.shell import MAX_PROCESS_COMMAND, MAX_SIDE, PtyFields

MAX_CELLS = 1 << 18
"""Most characters of a screen."""

KEPT_BYTES = 2 << 20
"""Bytes of output that a terminal keeps."""

MAX_INPUT = 256 << 10
MAX_CONTAINS = 1000

RUNNING: Final = "running"
EXITED: Final = "exited"
LOST: Final = "lost"
CLOSED: Final = "closed"
STATES = (RUNNING, EXITED, LOST, CLOSED)

WIDTH, HEIGHT = "Its width in characters.", "Its height in lines."

TerminalState = Annotated[str, SchemaMembers({"enum": list(STATES)})]
AS_IN_QUERY = "As in `/terminal/query`."


class TerminalOpenRequest(WhatRuns, SendsEnvironment, ShellNamed, PtyFields):
    may_lack: ClassVar[bool] = True
    max_bytes: ClassVar[int] = MAX_PROCESS_COMMAND

    connection: Annotated[str, ID, "Where the terminal is opened."]
    command: Annotated[
        str | None,
        Length(1),
        "The command to run, in the language of the shell. Without it and `argv`: an interactive shell.",
    ] = None
    env: Annotated[Mapping[str, str] | None, INTERNAL, "The PATH that a rule has set for an argv."] = None
    record: Annotated[bool, "True records the terminal for asciinema, in `recordings/` of the data directory."] = False

    def check(self) -> None:
        super().check()
        check_size(self.columns, self.rows)


def check_size(columns: int, rows: int) -> None:
    """Raise :class:`Wrong` if a terminal would have too many characters."""
    if columns * rows > MAX_CELLS:
        raise Wrong(f"A terminal has at most {MAX_CELLS} characters.", "columns")


class TerminalRequest(Message):
    terminal: Annotated[str, ID, "The terminal."]


class TerminalInfo(TerminalRequest):
    """The state of a terminal; ``idle`` in seconds."""

    connection: Annotated[str, ID, "The connection that it is on."]
    session: Annotated[str | None, "The shell in whose state it began, or null."]
    command: Annotated[
        str | tuple[str, ...] | None,
        WORDS,
        SchemaMembers({"type": ["string", "array"], "items": {"type": "string"}}),
        "What runs on it: the text of the `command`, or the `argv` as a list; null: an interactive shell.",
    ]
    locked: Annotated[
        bool | None, "True if the caller cannot open the connection's secrets; `command` is then null."
    ] = None
    term: Annotated[str, "The value of TERM."]
    columns: Annotated[int, WIDTH]
    rows: Annotated[int, HEIGHT]
    state: Annotated[
        TerminalState,
        "`running`; at its end `exited`, `closed` (by a client, or because its connection was changed), or `lost`: its "
        "link broke.",
    ]
    exit_code: Annotated[
        int | None, "The exit code of its program, 128 + N if signal N ended it; null if none is known."
    ]
    clients: Annotated[int, "How many clients are attached."]
    idle: Annotated[float, "Seconds since a client was last attached or sent a request; 0 while one is attached."]
    opened: Annotated[datetime, "When it was opened."]
    ended: Annotated[datetime | None, "When it ended, or null."]
    recording: Annotated[
        str | None,
        SchemaMembers({"enum": ["active", "complete", "cut", "failed", None]}),
        "null: not recorded; `active`; `complete`, after the terminal's end; `cut`: the recording ended at "
        "`max-recording`, or at `max-recordings` of all; `failed`: it could not be written.",
    ]
    waiting: Waits = None


class TerminalQueryRequest(Message):
    connection_filter: Annotated[str, FILTER, "Names of connections, as in `/connection/query`."] = "*"
    category_filter: Annotated[str, FILTER, "Names of their categories."] = "*"
    type_filter: Annotated[str, FILTER, "Their types."] = "*"
    where: Where = None


class TerminalQueryResponse(Message):
    terminals: Annotated[list[TerminalInfo], "The terminals, the oldest first."]


class TerminalAttachRequest(TerminalRequest):
    watch: Annotated[bool, "True only watches: this client can neither type nor set the size."] = False


class TerminalInputRequest(TerminalRequest):
    data: Annotated[
        str,
        NUL,
        Length(max=MAX_INPUT * 4 // 3 + 4),
        "What is typed, in base64 if `encoding` says so. Enter is `\\r`, Ctrl-C `\\u0003`.",
    ]
    encoding: Annotated[Encoding, "`utf-8`, or `base64` for any bytes."] = "utf-8"

    def check(self) -> None:
        super().check()
        check_base64(self.data, self.encoding, "data")


class TerminalOutputRequest(TerminalRequest):
    offset: Annotated[int, OFFSET, "The first byte to return: `next` of the previous answer."] = 0
    wait: Annotated[float, WAIT, "Seconds to wait for output, if there is none yet."] = 0
    max_bytes: Annotated[int, Range(MIN_BYTES, KEPT_BYTES), "Most bytes to return."] = 256 << 10
    encoding: Annotated[
        Encoding, "`utf-8`: text, cut between characters, undecodable bytes as U+FFFD. `base64`: byte by byte."
    ] = "utf-8"


class TerminalOutputResponse(Message):
    data: Annotated[str, "The output from `offset` on, unchanged."]
    offset: Annotated[int, "Where `data` begins: later than the requested `offset` if that part was dropped."]
    next: Annotated[int, "The offset to ask for next, in bytes."]
    eof: Annotated[bool, "Whether nothing follows."]
    state: Annotated[TerminalState, AS_IN_QUERY]
    exit_code: Annotated[int | None, AS_IN_QUERY]


class TerminalScreenRequest(TerminalRequest):
    wait: Annotated[float, WAIT, "Longest wait in seconds for `since` and `contains`."] = 0
    since: Annotated[int | None, OFFSET, "The `offset` of an earlier answer: wait until there is output after it."] = (
        None
    )
    contains: Annotated[str | None, Length(1, MAX_CONTAINS), "Wait until a line of the screen contains this text."] = (
        None
    )


class Cursor(Message):
    column: Annotated[int, "Counted from 0."]
    row: Annotated[int, "Counted from 0."]
    visible: Annotated[bool, "Whether it is shown."]


class TerminalScreenResponse(Message):
    columns: Annotated[int, WIDTH]
    rows: Annotated[int, HEIGHT]
    lines: Annotated[list[str], "The text of each line, without colours, and without blanks at its end."]
    cursor: Cursor
    title: Annotated[str, "The title that the program has set."]
    alternate: Annotated[bool, "Whether a program uses the alternate screen, as full-screen programs do."]
    offset: Annotated[int, "How many bytes of output it shows."]
    state: Annotated[TerminalState, AS_IN_QUERY]
    exit_code: Annotated[int | None, AS_IN_QUERY]
    waiting: Waits = None


class TerminalResizeRequest(TerminalRequest):
    columns: Annotated[int, Range(1, MAX_SIDE), WIDTH]
    rows: Annotated[int, Range(1, MAX_SIDE), HEIGHT]

    def check(self) -> None:
        super().check()
        check_size(self.columns, self.rows)


class TerminalTicketResponse(Message):
    ticket: Annotated[str, "Offered as the subprotocol `connmgr.ticket.TICKET` beside `connmgr.v1`."]
