"""``/job``: commands that run on a machine independently of client and daemon."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from connmgr.contract.common import (
    AwaitsApproval,
    CommandOptions,
    Encoding,
    ShellNamed,
    Waits,
    Where,
    check_base64,
)
from connmgr.contract.message import FILTER, ID, NUL, Fact, Json, Length, Message, OneOf, Range, SchemaMembers

DAY = 86400
MAX_WAIT = 25
"""Longest wait of a request in seconds: proxies between client and daemon often end requests after 30."""

MIN_BYTES, MAX_BYTES = 16, 4 << 20
"""The bounds of the most bytes of a stream in one answer."""

KEEP_SECONDS = DAY
LEAST_AGE_SECONDS = 60
"""A job that began later may be one that another daemon is starting, and is not an orphan."""

SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2", "WINCH", "ALRM")

STARTING: Final = "starting"
RUNNING: Final = "running"
UNDER_WAY = (STARTING, RUNNING)
ENDED = ("exited", "killed", "timed_out", "lost")

OPEN = "open"
"""The value of ``stdin`` (no base64) that announces later input by ``/job/input``."""

WORDS = Fact("WORDS", read=lambda words: tuple(words) if isinstance(words, list) else words)
"""The text of a command, or the list of an argv; null if it is not shown."""

HIDDEN = "(not shown: the secrets of its connection are locked)"
AGE = Range(0, 100 * 365 * DAY)
OFFSET = Range(0, 1 << 52)
WAIT = Range(0, MAX_WAIT)

JobId = Annotated[str, ID, "The job."]


class JobStartRequest(CommandOptions, ShellNamed, AwaitsApproval):
    connection: Annotated[
        str, ID, "The connection with the shell in whose directory and with whose variables the job runs."
    ]
    stdin: Annotated[
        str | None,
        NUL,
        f"The job's input, in base64 if `encoding` says so; without that `{OPEN}`: `/job/input` sends it. Without it: "
        "none.",
    ] = None
    timeout: Annotated[
        float | None,
        Range(0, 365 * DAY, above=True),
        "Seconds until the remote host ends the job. Without it: never.",
    ] = None
    keep: Annotated[int, Range(0, 365 * DAY), "Seconds for which the job and its output are kept after its end."] = (
        KEEP_SECONDS
    )
    name: Annotated[str | None, Length(1, 200), "A name to find the job by."] = None
    key: Annotated[
        str | None,
        Length(1, 200),
        "Makes the start repeatable: if a job of this connection, running or kept, has this key, the answer is that "
        "job, and nothing is started. If that one was started for something else, the answer is `key_reused`. Each "
        "token has keys of its own.",
    ] = None
    tell_directory: Annotated[bool, "True makes `/job/output` tell the directory in which the `command` ended."] = False


class JobRequest(Message):
    job: JobId


class JobStartResponse(JobRequest):
    warning: Annotated[str | None, "Present where the remote host may end the job when its user has logged out."] = None


class JobOutputRequest(JobRequest):
    stdout: Annotated[int, OFFSET, "The first byte of standard output to return: `next` of the previous answer."] = 0
    stderr: Annotated[int, OFFSET, "The same for standard error."] = 0
    wait: Annotated[float, WAIT, "Seconds to wait for news if there is none."] = 0
    until: Annotated[
        str,
        OneOf(("output", "exit", "input")),
        "What counts as news: `output`: output or the end; `exit`: only the end; `input`: the end, or that it waits "
        "for input.",
    ] = "output"
    max_bytes: Annotated[int, Range(MIN_BYTES, MAX_BYTES), "Most bytes of each stream in one answer."] = 1 << 20
    encoding: Annotated[
        Encoding,
        "`utf-8`: text, cut between characters, undecodable bytes as U+FFFD. `base64`: byte by byte.",
    ] = "utf-8"


class StreamResponse(Message):
    data: Annotated[str, "What was printed from the offset on."]
    next: Annotated[int, "The offset to ask for next, in bytes."]
    eof: Annotated[bool, "Whether nothing follows."]
    size: Annotated[int, "How many bytes the job has printed so far."]


State = Annotated[
    str,
    SchemaMembers({"enum": [*UNDER_WAY, *ENDED]}),
    "`starting`, `running`; at its end `exited`, `killed` (by `/job/kill`), `timed_out`, or `lost`: the remote host "
    "was restarted, or its files there have disappeared.",
]
Stale = Annotated[bool, "True if the machine could not be asked: the answer then shows the job as last seen."]
EXIT_CODE = "The exit code, 128 + N if signal N ended the job; null if it runs or the code is unknown."


class JobOutputResponse(Message):
    state: State
    exit_code: Annotated[int | None, EXIT_CODE]
    stdout: StreamResponse
    stderr: StreamResponse
    truncated: Annotated[bool, "Whether a stream went beyond `job-output`, and the rest was dropped."]
    stale: Stale
    waiting: Waits = None
    directory: Annotated[
        str | None,
        "With `tellDirectory`, after the end: the directory in which the command ended. Absent for csh, and for a "
        "command that sets an EXIT trap, was killed, or ended by `exec`.",
    ] = None


class JobInputRequest(JobRequest):
    data: Annotated[str, NUL, Length(max=MAX_BYTES), "More of its input, in base64 if `encoding` says so."] = ""
    eof: Annotated[bool, "Whether the input ends with this piece."] = False
    encoding: Annotated[Encoding, "`utf-8` or `base64`."] = "utf-8"

    def check(self) -> None:
        super().check()
        check_base64(self.data, self.encoding, "data")


class JobKillRequest(JobRequest):
    signal: Annotated[str, OneOf(SIGNALS), "Sent to all processes of the job."] = "TERM"
    grace: Annotated[
        float, Range(0, 3600), "Seconds after TERM, INT, HUP or QUIT until the remaining processes get KILL."
    ] = 5


class JobWaitRequest(JobRequest):
    wait: Annotated[float, WAIT, "Seconds after which the answer comes in any case."] = MAX_WAIT


class JobRemoveRequest(JobRequest):
    force: Annotated[bool, "True kills a running job first."] = False


class JobQueryRequest(Message):
    connection_filter: Annotated[str, FILTER, "A filter for the paths of connections."] = "*"
    where: Where = None
    category_filter: Annotated[str, FILTER, "A filter for their categories."] = "*"
    type_filter: Annotated[str, FILTER, "A filter for their types."] = "*"
    states: Annotated[list[Annotated[str, OneOf((*UNDER_WAY, *ENDED))]] | None, "In one of these states."] = None
    name: Annotated[str | None, "Of this name."] = None
    min_age: Annotated[float | None, AGE, "Started this many seconds ago or earlier."] = None
    max_age: Annotated[float | None, AGE, "Started this many seconds ago or later."] = None


class JobInfo(Message):
    """The last known state of a job, ``stale`` if its machine could not be asked now.

    ``ended`` is None before the end, ``exit_code`` if it is unknown; ``keep`` is in seconds.
    """

    id: Annotated[str, Json("job"), SchemaMembers({"format": "uuid"}), "The job."]
    connection: Annotated[str, SchemaMembers({"format": "uuid"}), "Where it runs."]
    session: Annotated[str | None, "The named shell that it was started for, or null."]
    name: Annotated[str | None, "As it was given."]
    key: Annotated[str | None, "As it was given."]
    command: Annotated[
        str | tuple[str, ...] | None,
        WORDS,
        SchemaMembers({"type": ["string", "array"], "items": {"type": "string"}}),
        "The text of the `command`, the `argv` as a list, or null.",
    ]
    locked: Annotated[
        bool | None, "True if the caller cannot open the connection's secrets; `command` is then null."
    ] = None
    state: State
    exit_code: Annotated[int | None, EXIT_CODE]
    stdin_open: Annotated[bool, "Whether it was started with open input."]
    created: Annotated[datetime, "When its start was requested."]
    ended: Annotated[datetime | None, "When its end was seen; null while it runs."]
    keep: Annotated[int, "Seconds for which it is kept after its end."]
    stale: Stale
    waiting: Waits = None
    token: Annotated[
        str | None, SchemaMembers({"format": "uuid"}), "The token with which it was started; absent: the owner's job."
    ] = None

    @property
    def text(self) -> str:
        """Its command as one text; a sentence in its place if this client may not see it."""
        if self.command is None:
            return HIDDEN
        if isinstance(self.command, str):
            return self.command
        # Imported here, because most clients do not need it.
        import shlex

        return shlex.join(self.command)


class JobQueryResponse(Message):
    jobs: Annotated[list[JobInfo], "Oldest first."]


class JobOrphansRequest(Message):
    connection: Annotated[str, ID, "The connection to the machine, as the user who ran them."]
    remove: Annotated[bool, "True removes those that do not run."] = False
    min_age: Annotated[float, AGE, f"Begun this many seconds ago or earlier; {LEAST_AGE_SECONDS} at the least."] = 0


class JobOrphan(Message):
    """A job that the vault does not know; ``age`` in seconds."""

    job: Annotated[str, SchemaMembers({"format": "uuid"}), "The job."]
    state: Annotated[str, SchemaMembers({"enum": [RUNNING, *ENDED]}), "As in `/job/info`, seen from this machine."]
    age: Annotated[int | None, "Seconds since it began; null where the machine can only tell that it is old enough."]
    removed: Annotated[bool, "Whether it was removed now."]


class JobOrphansResponse(Message):
    orphans: Annotated[list[JobOrphan], "In the order of uuids."]
