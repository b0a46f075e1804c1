"""``/shell``: shells, the commands in them, commands on many connections, and processes of one client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar

from connmgr.contract.common import (
    SHELL_NAME,
    AwaitsApproval,
    CommandOptions,
    Elevated,
    Environment,
    Located,
    Selecting,
    SendsEnvironment,
    ShellNamed,
    Waits,
    WhatRuns,
)
from connmgr.contract.message import (
    DISTINCT,
    ID,
    PATH,
    Json,
    Length,
    Message,
    OneOf,
    Pattern,
    Range,
    SchemaMembers,
    members,
)
from connmgr.contract.message import Wrong as Wrong

SHOWN_CHARACTERS = 1000
"""Most characters of a running command that are shown."""

MAX_DETACH_SECONDS = 3600
MAX_CONNECTIONS = 1000
"""Most connections of a broadcast."""

MAX_PARALLEL = 128
MAX_SIDE = 4096
"""Most columns, and most rows, of a terminal."""

MAX_PROCESS_COMMAND = 64 * 1024
"""Longest command of a process, in bytes: a kernel gets it as one word (MAX_ARG_STRLEN of Linux is 128 KiB)."""

FRESH_SESSION = "fresh-[0-9a-f]{16}"
"""Names of shells that are started for one command alone; see :func:`fresh_session`."""

BODY = "body"
"""The value of ``input``: what follows the request's line is the command's input."""

SFTP_SERVER = (
    "/bin/sh",
    "-c",
    "for at in /usr/lib/openssh /usr/libexec/openssh /usr/libexec /usr/lib/ssh /usr/lib /usr/local/libexec; do "
    'if [ -x "$at/sftp-server" ]; then exec "$at/sftp-server"; fi; done; '
    "command -v sftp-server >/dev/null || { echo 'The host has no sftp-server.' >&2; exit 127; }; exec sftp-server",
)
"""The argv that runs a host's SFTP server, found where OpenSSH is installed; ssh's subsystem ``sftp`` is this."""

STTY_WORD = Pattern(
    r"(-?[a-z0-9]{2,8}|\^[?-_]|[0-9]{1,3})\Z", "Not a word for stty.", "^(-?[a-z0-9]{2,8}|\\^[?-_]|[0-9]{1,3})$"
)
TERM = Pattern(
    r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z", "Not the name of a terminal.", "^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
)
Restarted = Annotated[
    bool | None,
    "Present, and true, if the shell had been lost and a new one was started, with a new directory and new variables.",
]
Truncated = Annotated[bool | None, "Present, and true, if output beyond `max-output` was dropped."]


LANGUAGES = ("sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "csh", "pwsh", "cmd", "unknown")
"""The languages of shells, by their numbers in answers."""


def fresh_session() -> str:
    """Return the name of a new shell for one command alone, which no other command uses."""
    return f"fresh-{os.urandom(8).hex()}"


class OwnShell(Message):
    """A request whose command may run in a new shell."""

    fresh: Annotated[
        bool,
        "True runs the command in a new shell, which is stopped afterwards. It sees neither directory nor variables of "
        "earlier commands, and leaves none. Not together with `session`.",
    ] = False

    def check(self) -> None:
        super().check()
        names = members(self) if self.fresh else {}
        for name in ("session", "detachAfter"):
            if name in names:
                raise Wrong(f"Not together with {name}.", "fresh")


class ShellRequest(ShellNamed):
    connection: Annotated[str, ID, "The connection that the shell is on."]


class StartRequest(ShellRequest):
    tell_restarted: Annotated[bool, "True adds `restarted` to the answer if the shell had been lost."] = False


class ShellInfo(Message):
    """The description of a shell; ``dialect`` is the number of the shell's language."""

    dialect: Annotated[
        int,
        Json("shellDialect"),
        f"The language of commands: {', '.join(f'{number} {name}' for number, name in enumerate(LANGUAGES))}.",
    ]
    os_type: Annotated[str, "`linux`, `macos`, `bsd`, `solaris`, `aix`, `windows` or `unix`."]
    os_name: Annotated[str, "The system's name for itself."]
    tty_state: Annotated[str, "`none`; `merged`: stderr arrives within stdout; `pty`."]
    temp: Annotated[str, "The remote host's directory for temporary files: `$TMPDIR` or `/tmp`."]
    restarted: Restarted = None


class ExecRequest(CommandOptions, ShellNamed, OwnShell, AwaitsApproval):
    connection: Annotated[str, ID, "The connection whose shell runs the command."]
    start: Annotated[
        bool,
        "True starts the shell if it does not run, or was lost before any part of the command was sent. Otherwise the "
        "answer is `no_shell` or `shell_lost`.",
    ] = False
    detach_after: Annotated[
        float | None,
        Range(0, MAX_DETACH_SECONDS),
        "Seconds after which the answer has `job`, and the command runs on as that job.",
    ] = None
    input: Annotated[
        str | None,
        OneOf((BODY,)),
        "`body`: the command reads what follows this line of the request's body while it arrives. Given by itself for "
        "a body of type `application/octet-stream`. Not together with `stdin` or `detachAfter`.",
    ] = None

    def check(self) -> None:
        super().check()
        for name, value in (("stdin", self.stdin), ("detachAfter", self.detach_after)):
            if self.input is not None and value is not None:
                raise Wrong(f"Not together with {name}.", "input")


class ExecResponse(Message):
    exit_code: Annotated[int | None, "The command's exit code; 128 + N if signal N ended it. Absent if it runs on."] = (
        None
    )
    job: Annotated[
        str | None,
        SchemaMembers({"format": "uuid"}),
        "Present if the command ran longer than `detachAfter`: the job as which it runs on.",
    ] = None
    stdout: Annotated[str, "The command's standard output."]
    stderr: Annotated[str, "The command's standard error; empty if `ttyState` is `merged`."]
    waiting: Waits = None
    truncated: Truncated = None
    restarted: Restarted = None


class ExecLine(Message):
    """A line of the answer while a command runs."""

    restarted: Restarted = None
    begun: Annotated[
        bool | None, "Present, and true, in the first line if the request's body is the command's input."
    ] = None
    stdout: Annotated[str | None, "Standard output, in whole characters."] = None
    stderr: Annotated[str | None, "Standard error, in whole characters."] = None
    exit_code: Annotated[int | None, "The exit code, in the last line if the command ended."] = None
    error: Annotated[
        Mapping[str, Any] | None,
        "Why the command did not run to its end, as in an answer 500; in the last line instead of `exitCode`.",
    ] = None


class ListRequest(Located):
    connection: Annotated[str | None, ID, "Only the shells of this connection, and of elevated ones over it."] = None


class StopRequest(ShellRequest):
    all: Annotated[bool, "True stops all shells of the connection; not together with `session`."] = False

    def check(self) -> None:
        super().check()
        if self.all and self.session is not None:
            raise Wrong("Give either all or session, not both.", "all")


class ShellStatus(Message):
    """The state of a running shell; ``uptime`` and ``idle`` in seconds."""

    connection: Annotated[str, ID, "The connection that the shell is on."]
    session: Annotated[str | None, "The shell's name. Absent: the connection's own shell."] = None
    state: Annotated[str, "`idle`, `busy` or `lost`."]
    uptime: Annotated[float, "Seconds since it was started."]
    idle: Annotated[float, "Seconds since it was last used; 0 while a request uses it."]
    waiting: Annotated[int, "Commands that queue for it."]


class RunningCommandInfo(Message):
    """The command that a shell runs, and who asked for it."""

    command: Annotated[str, f"Its text, or the words of its argv, up to {SHOWN_CHARACTERS} characters."]
    client: Annotated[str, "The client that asked for it, by its own name."]
    token: Annotated[str | None, "The name of that client's token. Absent: it has none."] = None


class ListedShell(ShellStatus):
    """A running shell with its process and directory."""

    pid: Annotated[int, "The shell's process id on the machine where it runs."]
    directory: Annotated[bytes, PATH, "Its directory after the last command."]
    since: Annotated[datetime, "When it was started."]
    running_since: Annotated[datetime | None, "When the running command began. Absent: none runs."] = None
    running: Annotated[
        RunningCommandInfo | None,
        "The running command. A token sees those of its own clients, and of tokens that it created.",
    ] = None


class ShellListResponse(Message):
    shells: Annotated[list[ListedShell], "The shells that run."]


class BroadcastRequest(CommandOptions, OwnShell, AwaitsApproval, Selecting):
    session: Annotated[
        str | None, SHELL_NAME, "The name of a further shell of each connection. Without it: the connection's own."
    ] = None
    connections: Annotated[
        list[str] | None, DISTINCT, f"The connections that run it, at most {MAX_CONNECTIONS:,}, each once."
    ] = None
    elevate: Elevated = None
    parallel: Annotated[
        int, Range(1, MAX_PARALLEL), "How many connections run the command at a time. Without it: 32."
    ] = 32
    start: Annotated[
        bool,
        "True starts shells that do not run or are lost. Otherwise their connections get `no_shell` or `shell_lost`.",
    ] = True


class BroadcastLine(Message):
    """The outcome on one connection; the last line has the counts."""

    connection: Annotated[str | None, ID, "The connection's uuid. Not in the last line."] = None
    name: Annotated[
        list[str] | None,
        SchemaMembers({"type": ["array", "null"]}),
        "The connection's path, as in `/connection/info`; null if there is no such connection.",
    ] = None
    exit_code: Annotated[int | None, "The command's exit code, as in `/shell/exec`."] = None
    stdout: Annotated[str | None, "Its standard output."] = None
    stderr: Annotated[str | None, "Its standard error."] = None
    truncated: Truncated = None
    restarted: Restarted = None
    error: Annotated[
        Mapping[str, Any] | None,
        "In place of `exitCode`: why the command did not run to its end, with `code`, `message` and further members, "
        "like an error of `/shell/start` or `/shell/exec`.",
    ] = None
    ms: Annotated[float | None, "Milliseconds from the command's turn to its end."] = None
    connections: Annotated[int | None, "In the last line: how many connections there were."] = None
    succeeded: Annotated[int | None, "In the last line: how many commands exited with 0."] = None
    failed: Annotated[int | None, "In the last line: how many commands exited with another code."] = None
    errors: Annotated[int | None, "In the last line: how many connections have an `error`."] = None


class Address(Message):
    """A TCP port."""

    host: Annotated[str, Length(1, 255), "As the remote host names it."]
    port: Annotated[int, Range(1, 65535), "The TCP port."]


class PtyFields(Message):
    """The terminal of a process."""

    term: Annotated[str, TERM, "The value of TERM."] = "xterm-256color"
    columns: Annotated[int, Range(1, MAX_SIDE), "Its width."] = 80
    rows: Annotated[int, Range(1, MAX_SIDE), "Its height."] = 24


class PipeRequest(WhatRuns, SendsEnvironment, PtyFields):
    alternatives: ClassVar[tuple[str, ...]] = ("command", "argv", "saved", "tcp")
    may_lack: ClassVar[bool] = True
    max_bytes: ClassVar[int] = MAX_PROCESS_COMMAND

    connection: Annotated[str, ID, "Where it runs."]
    command: Annotated[
        str | None,
        "A command in the language of the login shell. Without a command of any kind: the login shell itself.",
    ] = None
    tcp: Annotated[Address | None, "Instead of a command: where the remote host opens a TCP stream to."] = None
    pty: Annotated[bool, "Gives the process a terminal; standard error then comes with the output."] = False
    env: Annotated[Environment | None, "Environment variables for the process."] = None
    agent: Annotated[bool, "False hides the ssh-agent that the connection forwards from the process."] = True
    modes: Annotated[
        list[Annotated[str, STTY_WORD]] | None,
        Length(max=128),
        "With `pty`: settings of the terminal before the process begins, as words of stty(1): `-ixon`, or `erase` and "
        "`^H`. A system without stty has none of them.",
    ] = None
