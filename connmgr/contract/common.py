"""What messages of several endpoint groups have in common."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from connmgr.contract.message import (
    DISTINCT,
    FILTER,
    ID,
    INTERNAL,
    NUL,
    SECRET,
    USER,
    WHERE,
    Fact,
    Keys,
    Length,
    Message,
    OneOf,
    Pattern,
    Range,
    Wrong,
)

ENCODINGS = ("utf-8", "base64")
MAX_TIMEOUT = 86400
MAX_COMMAND = 1 << 20
"""Longest command, or argv in all, in bytes."""

MAX_WORDS = 4096
MAX_APPROVAL_WAIT = 60
"""Longest wait of a request for its approval, in seconds."""

EMPTY: Mapping[str, Any] = MappingProxyType({})

SECOND_NAMES = {"connection": "store", "connections": "stores", "connectionFilter": "storeFilter"}
"""Fields that newer clients of the XPipe API know by a second name, and that name."""

ELEVATE = Fact("ELEVATE")
"""A wish to run as another user, which a query gives by the user's name alone."""

SHELL_NAME = Pattern(
    r"^[A-Za-z0-9_.-]{1,64}\Z",
    "Not 1 to 64 of the letters A to Z and a to z, digits, `_`, `.` and `-`.",
    "^[A-Za-z0-9_.-]{1,64}$",
)
VARIABLE = Pattern(r"[A-Za-z_][A-Za-z0-9_]*\Z", "Not the name of a variable.")
Environment = Annotated[Mapping[str, str], Keys((VARIABLE,))]
Encoding = Annotated[str, OneOf(ENCODINGS)]

SYSTEM_FACTS = ("os", "arch", "kernel", "host", "cpu", "memory", "swap", "disk", "uptime")
"""The first words of the facts about the system itself."""

PACKAGE_FACTS = "package"
DOTLESS_FACTS = ("arch", "kernel", "uptime")
"""The facts whose names have no dot; so no label has one of these names, nor one with a dot."""

MAX_LABELS = 64
LONGEST_LABEL = 255
LABEL_NAME = Pattern(
    r"(?!(arch|kernel|uptime|and|or|not)\Z)[a-z][a-z0-9_-]{0,62}\Z",
    "Not 1 to 63 of the letters a to z, digits, `_` and `-`, with a letter first; and `arch`, `kernel`, `uptime`, "
    "`and`, `or` and `not` have another meaning in conditions.",
    "^[a-z][a-z0-9_-]{0,62}$",
)
NO_CONTROLS = Pattern(
    r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z",
    "Has control characters.",
    r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$",
)
Labels = Annotated[
    Mapping[str, Annotated[str, Length(max=LONGEST_LABEL), NO_CONTROLS]], Keys((LABEL_NAME,)), Length(max=MAX_LABELS)
]
Where = Annotated[
    str | None,
    WHERE,
    "A condition on the labels of connections and on the facts about their machines, such as "
    "`env=prod and os.id=debian`. It must hold beside the filters.",
]


class Elevate(Message):
    """A wish to run as another user by sudo."""

    user: Annotated[str, USER] = "root"
    password: Annotated[str | None, SECRET] = None


Elevated = Annotated[
    Elevate | None,
    ELEVATE,
    "Run as another user: by sudo over the connection, in an elevated shell of its own. `user` is `root` if omitted. "
    "Without `password`, sudo gets the one stored for the connection or a category above it (`/secret/sudo`). A "
    "`password` given here is kept in memory while the elevated connection has a link.",
]


class Located(Message):
    """A request with a field ``connection``, which both vocabularies have."""


class ShellNamed(Located):
    """A request to one shell of a connection."""

    connection: Annotated[str, ID, "The connection whose running shell is used."]
    session: Annotated[
        str | None, SHELL_NAME, "The name of a further shell of the connection. Without it: the connection's own shell."
    ] = None
    elevate: Elevated = None


class Selecting(Message):
    """A request about many connections: by their ids, or by filters and a condition."""

    connections: Annotated[list[str] | None, DISTINCT, "The connections, each once."] = None
    connection_filter: Annotated[
        str | None,
        FILTER,
        "In place of `connections`: a filter for the path, as in `/connection/query`. An omitted filter means `*`. "
        "Connections whose type has no shells are skipped.",
    ] = None
    category_filter: Annotated[str | None, FILTER, "A filter for the path of the category."] = None
    type_filter: Annotated[str | None, FILTER, "A filter for the type."] = None
    where: Where = None

    def check(self) -> None:
        super().check()
        filters = {"categoryFilter": self.category_filter, "connectionFilter": self.connection_filter}
        filters |= {"typeFilter": self.type_filter, "where": self.where}
        names = [name for name, value in filters.items() if value is not None]
        if self.connections is None and not names:
            raise Wrong("Give connections or a filter.", "connections")
        if self.connections is not None and names:
            raise Wrong("Give either connections or filters, not both.", names[0])


class AwaitsApproval(Message):
    """A request that may need an approval."""

    wait: Annotated[
        float,
        Range(0, MAX_APPROVAL_WAIT),
        "Seconds to wait for an approval, if a rule of the token asks for one, before the answer `approval_required`.",
    ] = 0


class Saved(Message):
    """A saved command, and its arguments."""

    name: Annotated[str, "The command's name."]
    arguments: Annotated[Mapping[str, Any], Keys(()), "A text, or an integer, for each of its parameters."] = EMPTY
    too_free: Annotated[
        Callable[[str, Any], str | None] | None,
        INTERNAL,
        "Tells why its arguments are too free for a rule of a token, by the rule's effect and limits.",
    ] = None


class WhatRuns(Message):
    """What a request runs: one of its ``alternatives``, or none if it ``may_lack`` all."""

    alternatives: ClassVar[tuple[str, ...]] = ("command", "argv", "saved")
    may_lack: ClassVar[bool] = False
    max_bytes: ClassVar[int] = MAX_COMMAND

    command: Annotated[str | None, "The command, in the language of the session's shell. This or `argv`."] = None
    argv: Annotated[
        list[str] | None,
        Length(1, MAX_WORDS),
        "A program and its arguments, run without a shell: every byte of each word arrives. The program is found in "
        "`PATH`, unless it has a slash.",
    ] = None
    saved: Annotated[Saved | None, "A command of `/command/query`, in place of `command` or `argv`."] = None

    def check(self) -> None:
        super().check()
        names = [name for name in self.alternatives if getattr(self, name) is not None]
        if len(names) > 1:
            raise Wrong(f"Not together with {names[0]}.", names[1])
        if not names and not self.may_lack:
            raise Wrong(f"Give one of {', '.join(self.alternatives)}.", self.alternatives[0])
        size = len((self.command or "").encode()) + sum(len(word.encode()) + 1 for word in self.argv or ())
        if size > self.max_bytes:
            raise Wrong(f"Longer than {self.max_bytes} bytes.", names[0])


class SendsEnvironment(Message):
    """What runs in the environment of a client."""

    send_env: Annotated[
        Environment | None,
        "Variables of the client's environment, such as `LANG` and `LC_*`. Those that the daemon's `send-env` or the "
        "connection admits are set; the others are not. `/connection/environment` tells which.",
    ] = None


class CommandOptions(WhatRuns, SendsEnvironment):
    """The command, and the options for this command only."""

    timeout: Annotated[
        float | None,
        Range(0, MAX_TIMEOUT, above=True),
        "Seconds until the command is killed. Without it: the daemon's `command-timeout`.",
    ] = None
    stdin: Annotated[str | None, NUL, "The command's input, in base64 if `encoding` says so. Without it: none."] = None
    cwd: Annotated[
        str | None, Length(1), "The directory for this command only, absolute or relative to the session's."
    ] = None
    env: Annotated[Environment | None, "Environment variables for this command only."] = None
    encoding: Annotated[
        Encoding,
        "`utf-8`: output as text, without one final newline, undecodable bytes as U+FFFD. `base64`: output and "
        "`stdin` in base64, byte by byte.",
    ] = ENCODINGS[0]

    def check(self) -> None:
        super().check()
        check_base64(self.stdin, self.encoding, "stdin")


def check_base64(text: str | None, encoding: str, field: str) -> None:
    """Raise :class:`Wrong` about ``field`` if its text should be base64 and is not."""
    if encoding == "base64" and text is not None:
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Wrong("Not valid base64.", field) from None


def bytes_of(text: str, encoding: str) -> bytes:
    """Return the bytes of a text of a checked request: decoded from base64, or the text itself in UTF-8."""
    return base64.b64decode(text) if encoding == "base64" else text.encode()


class WaitingForInput(Message):
    """Work that has stopped to wait for somebody's input, as seen after a second of silence."""

    since: Annotated[datetime, "When that was first seen."]
    lines: Annotated[
        list[str],
        "The last lines that it printed, at most 10, without control characters; an unfinished one is the last. Empty "
        "where the caller cannot open the connection's secrets.",
    ]
    secret: Annotated[
        bool, "Whether the answer is not to be shown: its terminal hides what is typed, or the line names a secret."
    ]
    certain: Annotated[
        bool,
        "True where its machine shows a process that is blocked in reading from its terminal or its open input. False "
        "where that cannot be seen, and its last line looks like a prompt.",
    ]


Waits = Annotated[WaitingForInput | None, "Present while it runs and waits for input."]
