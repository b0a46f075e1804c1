"""``/run``: one command on many connections, kept in the vault, so that it outlives clients and daemons."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from connmgr.contract.common import ENCODINGS
from connmgr.contract.job import DAY, MAX_WAIT
from connmgr.contract.message import DISTINCT, ID, NUL, Json, Length, Message, OneOf, Range, SchemaMembers, Wrong
from connmgr.contract.shell import BroadcastRequest

MAX_TARGETS = 50_000
"""Most connections of a run."""

MAX_PARALLEL = 500
MAX_WAVES = 100
MAX_SCRIPT = 64 * 1024
"""Longest script, in characters: a kernel gets it as one word."""

MOST_SHOWN = 8 << 20
"""Bytes of outputs after which an answer ends."""

LESS = f"Fewer than asked for where their outputs would be more than {MOST_SHOWN >> 20} MiB;"

LONG_SECONDS = 600
"""A command that may take longer than this runs as a job, unless its request says otherwise."""

PENDING: Final = "pending"
RUNNING: Final = "running"
WAITING: Final = "waiting"
PAUSED: Final = "paused"
STOPPING: Final = "stopping"
DONE: Final = "done"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
STARTING: Final = "starting"
UNREACHABLE: Final = "unreachable"
UNKNOWN: Final = "unknown"

UNDER_WAY = (PENDING, RUNNING, WAITING, PAUSED, STOPPING)
ENDED = (DONE, FAILED, STOPPED)
"""The final states of a run."""

TARGET_STATES = (WAITING, STARTING, DONE, FAILED, UNREACHABLE, UNKNOWN, STOPPED)
FAILURES = (FAILED, UNKNOWN)
"""The states of targets that count as failures: of one whose state is unknown, nobody knows that it succeeded."""

RETRIED = (FAILED, UNREACHABLE, UNKNOWN, STOPPED)
"""The states of targets that ``/run/retry`` runs again, unless it names others."""

SHELL: Final = "shell"
JOB: Final = "job"

_INTERPRETER = re.compile(r"(?:ba|da|a|z|k|mk|fi)?sh|python[0-9.]*|pypy[0-9.]*")
SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%\Z")
_NUMBER_OR_SHARE = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[0-9.]+ ?%$"}]}

RunId = Annotated[str, ID, "The run."]


def share_of(value: object, field: str) -> int | float:
    """Return a number of targets as an integer, or a share such as ``10%`` as a float from 0 to 1.

    :raises Wrong: it is neither, or it is nothing at all, or more than everything.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise Wrong(f"{value} is not at least 1.", field)
        return value
    share = SHARE.match(value) if isinstance(value, str) else None
    if share is None:
        raise Wrong('Neither a number of targets nor a share such as "10%".', field)
    percent = float(share[1])
    if not 0 < percent <= 100:
        raise Wrong(f"A share is above 0% and at most 100%, not {value}.", field)
    return percent / 100


class Script(Message):
    """A script, run by the interpreter of its first line."""

    text: Annotated[
        str,
        Length(1, MAX_SCRIPT),
        "The script. A first line such as `#!/bin/bash` or `#!/usr/bin/env python3` names its interpreter, one that "
        "takes a program after `-c`; without it: `/bin/sh`.",
    ]
    arguments: Annotated[Sequence[str], Length(max=1000), "Its arguments."] = ()

    def argv(self) -> list[str]:
        """Return the words that run the script.

        :raises Wrong: its first line names no interpreter that takes a program after ``-c``, or gives it options.
        """
        first = self.text.split("\n", 1)[0]
        try:
            words = shlex.split(first[2:]) if first.startswith("#!") else ["/bin/sh"]
        except ValueError as error:
            raise Wrong(f"{first[:60]!r} cannot be split into words: {error}.", "script") from None
        name = words[-1].rsplit("/", 1)[-1] if words else ""
        if not _INTERPRETER.fullmatch(name):
            named = [word for word in words if not word.startswith("-")]
            if named != words and named and _INTERPRETER.fullmatch(named[-1].rsplit("/", 1)[-1]):
                why = "gives its interpreter options: set them in the script, such as by `set -e`, or"
            else:
                why = "does not name a shell or Python:"
            raise Wrong(f"{first[:60]!r} {why} start the interpreter with argv.", "script")
        # A shell takes the word after the program as the script's own name, Python does not.
        own = ["script"] if name.endswith("sh") else []
        return [*words, "-c", self.text, *own, *self.arguments]


class RunStartRequest(BroadcastRequest):
    alternatives: ClassVar[tuple[str, ...]] = ("command", "argv", "saved", "script", "facts")

    connections: Annotated[
        list[str] | None, DISTINCT, f"The connections that run it, at most {MAX_TARGETS:,}, each once."
    ] = None
    name: Annotated[str | None, Length(1, 200), "A name to find the run by."] = None
    script: Annotated[Script | None, "A script, in place of `command`, `argv` or `saved`."] = None
    facts: Annotated[
        list[str] | None,
        Length(0, 100),
        "Gathers facts as `/fact/gather` does, in place of a command: these parts of them, an empty list for all. A "
        "token needs the scope `connection.write` as well.",
    ] = None
    sudo: Annotated[bool, "True runs it as root by sudo, as an empty `elevate` does."] = False
    parallel: Annotated[
        int, Range(1, MAX_PARALLEL), "How many targets run the command at a time, on all daemons together."
    ] = 100
    waves: Annotated[
        list[Any] | None,
        Length(1, MAX_WAVES),
        SchemaMembers({"items": _NUMBER_OR_SHARE}),
        'Up to how many targets each wave goes, as numbers or shares: with `[1, "10%", "100%"]` the first wave is one '
        "target, and the second begins when the first has ended. What is missing after the last one is a wave of its "
        "own. Without it: one wave.",
    ] = None
    wave_pause: Annotated[float, Range(0, DAY), "Seconds between the end of a wave and the beginning of the next."] = 0
    wave_approval: Annotated[bool, "True makes each wave after the first wait for `/run/resume`."] = False
    stop_after: Annotated[
        Any,
        SchemaMembers(_NUMBER_OR_SHARE),
        'Failed targets, as a number or as a share such as `"5%"`, after which the run stops and is `failed`. Without '
        "it: it goes on to the last target.",
    ] = None
    retries: Annotated[int, Range(0, 10), "How often a failed or unreachable target is tried again."] = 0
    retry_delay: Annotated[float, Range(0, DAY), "Seconds before it is tried again."] = 10
    run_timeout: Annotated[
        float | None, Range(0, 30 * DAY, above=True), "Seconds after which the whole run is stopped."
    ] = None
    as_: Annotated[
        str | None,
        OneOf((SHELL, JOB)),
        "`shell` runs the command in the open shell of each connection; if the daemon dies, nobody knows the outcome "
        "of those that were running then. `job` runs it as a job with a key, which outlives the daemon. Without it: a "
        f"job if `timeout` is more than {LONG_SECONDS} s.",
    ] = None
    key: Annotated[
        str | None,
        Length(1, 200),
        "Makes the start repeatable: if a kept run has this key, the answer is that run, and nothing is started. If "
        "that one was started for something else, the answer is `key_reused`. Each token has keys of its own.",
    ] = None
    keep: Annotated[
        int | None,
        Range(1, 3650 * DAY),
        "Seconds for which the run and its output are kept after its end, at least one, so that somebody learns how it "
        "went. Afterwards the run is unknown. Without it: the daemon's `run-days`.",
    ] = None
    dry_run: Annotated[bool, "True starts nothing: the answer shows what would be selected, and the waves."] = False

    def check(self) -> None:
        super().check()
        if self.script is not None:
            self.script.argv()
        for number, value in enumerate(self.waves or ()):
            share_of(value, f"waves.{number}")
        if self.stop_after is not None:
            share_of(self.stop_after, "stopAfter")
        self._check_meant()
        if self.facts is not None:
            of_commands = ("as_", "session", "cwd", "env", "stdin", "elevate", "fresh", "sudo")
            if beside := next((name for name in of_commands if getattr(self, name)), None):
                raise Wrong("Facts are gathered by a program of the daemon's own: not with facts.", beside.rstrip("_"))
        if self.sudo and self.elevate is not None:
            raise Wrong("Given beside elevate; use one of them.", "sudo")
        if self.as_ == JOB and (self.fresh or (self.elevate is not None and self.elevate.password is not None)):
            raise Wrong(
                "A run as jobs takes neither `fresh` nor a sudo password: store the password, or run in shells.", "as"
            )

    def _check_meant(self) -> None:
        """Raise :class:`Wrong` about a field that would have no effect."""
        if not self.start:
            raise Wrong("A run starts the shells that it needs.", "start")
        if self.encoding != ENCODINGS[0] and self.stdin is None:
            raise Wrong("Only the `stdin` of a run is encoded: its output is kept as text.", "encoding")
        for name, value in (("wavePause", self.wave_pause), ("waveApproval", self.wave_approval)):
            if value and self.waves is None:
                # A person who wants to see one wave before the next must not get all targets at once.
                raise Wrong("There is nothing between waves without waves: give them, too.", name)


class RunRequest(Message):
    run: RunId


class RunInfoRequest(RunRequest):
    cells: Annotated[bool, "True adds `cells`, which a program draws."] = False


class RunStartResponse(Message):
    run: Annotated[str | None, SchemaMembers({"format": "uuid"}), "The run. Absent in a dry run."] = None
    is_kept: Annotated[
        bool | None,
        Json("kept"),
        "Present, and true, if a kept run has the `key`: the answer is about that one, and nothing was started.",
    ] = None
    targets: Annotated[int, "How many connections were selected."]
    waves: Annotated[list[int], "How many targets each wave has."]
    as_: Annotated[str, "`shell` or `job`: how each command runs."]
    why: Annotated[str, "Why it runs this way."]
    locked: Annotated[
        list[str] | None,
        "Present if secrets of some connections cannot be opened: their ids. They would be `failed`.",
    ] = None
    warning: Annotated[
        str | None,
        "Present if something has no effect: `retryDelay` without `retries`, `stopAfter` or waves on so few targets.",
    ] = None
    connections: Annotated[list[str] | None, "In a dry run: the selected connections, in the order of the run."] = None
    names: Annotated[list[str] | None, "In a dry run: their paths, joined with `/`."] = None


class RunWaitRequest(RunRequest):
    wait: Annotated[float, Range(0, MAX_WAIT), "Seconds after which the answer comes in any case."] = MAX_WAIT


class RunStopRequest(RunRequest):
    kill: Annotated[bool, "True kills the commands that run; otherwise they end by themselves."] = False


class RunRetryRequest(RunRequest):
    states: Annotated[
        Sequence[Annotated[str, OneOf(RETRIED)]], Length(1), "The states of the targets to run again."
    ] = RETRIED


class RunInfo(Message):
    run: Annotated[str, SchemaMembers({"format": "uuid"}), "The run."]
    name: Annotated[str | None, "As it was given."]
    state: Annotated[
        str,
        SchemaMembers({"enum": [*UNDER_WAY, *ENDED]}),
        "`pending`: not begun; `running`; `waiting`: between waves, see `reason`; `paused`; `stopping`: what runs is "
        "ending. At its end `done`: it went through; `failed`: it had too many failures, or without `stopAfter` any; "
        "`stopped`.",
    ]
    reason: Annotated[str | None, "Why it waits, failed or was stopped; null if there is nothing to say."]
    command: Annotated[
        Any,
        SchemaMembers({"type": ["string", "array", "null"], "items": {"type": "string"}}),
        f"The text of the `command`, the `argv` as a list; of a long one the first {MAX_SCRIPT:,} characters. Null if "
        "the caller may not see it.",
    ]
    locked: Annotated[
        bool | None,
        "Present, and true, if the caller cannot open the secrets of a connection, and so sees no `command`.",
    ] = None
    as_: Annotated[str, "`shell` or `job`: how each command runs."]
    why: Annotated[str, "Why it runs this way."]
    targets: Annotated[int, "How many there are."]
    counts: Annotated[
        Mapping[str, int],
        "How many targets are in each state: " + ", ".join(f"`{state}`" for state in TARGET_STATES) + ".",
    ]
    wave: Annotated[int, "The present wave, from 1."]
    waves: Annotated[list[int], "How many targets each wave has."]
    parallel: Annotated[int, "How many targets run at a time."]
    stop_after: Annotated[int | None, "The number of failures after which it stops."]
    retry_of: Annotated[str | None, "The run whose targets this one runs again."]
    token: Annotated[str | None, "The id of the token with which it was started; null for the owner."]
    submitted: Annotated[datetime, "When it was started."]
    began: Annotated[datetime | None, "When its first target began."]
    ended: Annotated[datetime | None, "When it ended."]
    rate: Annotated[float | None, "Targets a second, from its first target until now or its end."]
    left: Annotated[float | None, "Seconds that the rest will take at this rate; null if unknown."]
    daemons: Annotated[list[str], "The names of the daemons that run its targets now."]
    cells: Annotated[
        str | None,
        "Present if `/run/info` was asked for it: a digit for each target in the order of the run, which is the place "
        "of the target's state in `counts`, from 0. `/run/targets` tells more of one by its `offset`.",
    ] = None


class RunTargetsRequest(RunRequest):
    states: Annotated[list[Annotated[str, OneOf(TARGET_STATES)]] | None, "In one of these states."] = None
    offset: Annotated[int, Range(0), "How many to leave out at the beginning."] = 0
    limit: Annotated[int, Range(1, 10_000), "Most targets of an answer."] = 100
    output: Annotated[
        int, Range(0, 10_000), "Characters of the end of its output that each target is shown with; 0: none."
    ] = 200


class RunTarget(Message):
    connection: Annotated[str, "The connection."]
    name: Annotated[str | None, "Its path now, joined with `/`; null if it was removed or cannot be seen."]
    state: Annotated[
        str,
        SchemaMembers({"enum": list(TARGET_STATES)}),
        "`waiting`, `starting`: begun; `done`: exit code 0; `failed`; `unreachable`: nothing was sent; `unknown`: "
        "begun by a daemon that is gone, never repeated by itself; `stopped`: not begun, for the run was stopped.",
    ]
    exit_code: Annotated[int | None, "The exit code; null without one."]
    seconds: Annotated[float | None, "How long it took; null if it has not ended."]
    wave: Annotated[int, "Its wave, from 1."]
    tries: Annotated[int, "How often it has begun."]
    stdout: Annotated[str | None, "The end of its standard output."] = None
    stderr: Annotated[str | None, "The end of its standard error."] = None
    truncated: Annotated[bool | None, "Present, and true, if not all of its output is kept."] = None
    error: Annotated[Mapping[str, Any] | None, "Why it has no exit code: `code` and `message`."] = None
    job: Annotated[str | None, SchemaMembers({"format": "uuid"}), "The job as which it runs."] = None
    daemon: Annotated[str | None, "The name of the daemon that ran it."] = None
    locked: Annotated[
        bool | None, "Present, and true, if the caller cannot open the connection's secrets, and so sees no output."
    ] = None


class RunTargetsResponse(Message):
    targets: Annotated[list[RunTarget], f"In the order of the run. {LESS} `offset` goes on behind them."]
    total: Annotated[int, "How many match, on all pages."]


class RunOutputRequest(RunRequest):
    connection: Annotated[
        str | None, ID, "The target. Without it: the outputs of all that have ended, equal ones together."
    ] = None
    offset: Annotated[int, Range(0), "How many groups to leave out at the beginning."] = 0
    limit: Annotated[int | None, Range(1, 1000), "Most groups of the answer. Without it: all."] = None


class RunGroup(Message):
    """The targets whose outcome and output are equal."""

    connections: Annotated[list[str], "Their ids."]
    names: Annotated[list[str | None], "Their paths, joined with `/`; null for one that was removed."]
    state: Annotated[str, "As in `/run/targets`."]
    exit_code: Annotated[int | None, "As in `/run/targets`."]
    stdout: Annotated[str, NUL, "Their standard output."]
    stderr: Annotated[str, NUL, "Their standard error."]
    truncated: Annotated[bool | None, "Present, and true, if not all of it is kept."] = None
    error: Annotated[Mapping[str, Any] | None, "Why there is no exit code: `code` and `message`."] = None
    locked: Annotated[
        bool | None, "Present, and true, if the caller cannot open the connection's secrets, and so sees no output."
    ] = None


class RunOutputResponse(Message):
    groups: Annotated[list[RunGroup], f"The largest first. {LESS} `offset` goes on behind them."]
    total: Annotated[int, "How many groups there are."]


class RunQueryRequest(Message):
    states: Annotated[list[Annotated[str, OneOf((*UNDER_WAY, *ENDED))]] | None, "In one of these states."] = None
    name: Annotated[str | None, "Of this name."] = None
    limit: Annotated[int, Range(1, 1000), "Most runs of an answer."] = 100


class RunQueryResponse(Message):
    runs: Annotated[list[RunInfo], "Newest first."]


class RunRemoveRequest(RunRequest):
    pass
