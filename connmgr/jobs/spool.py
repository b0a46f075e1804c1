"""Starts jobs on the far side of a link, looks at them, feeds and ends them, without any state in the daemon."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from connmgr.engine.rpc import Exchange, Helpers, Program
from connmgr.engine.script import new_nonce
from connmgr.errors import InvalidRequest, PermissionDenied, TransferFailed
from connmgr.jobs import scripts
from connmgr.jobs.launch import OPEN, Launch
from connmgr.plugin import Deadline, Transport

BLOCK_BYTES = 4096
"""Block size of the far side for reads of a stream."""

PIECE_BLOCK_BYTES = 64 << 10
QUEUE_BYTES = 8 << 20
"""Most bytes of unread input of a job; more is refused."""

DESCRIPTION_BYTES = 1 << 20
JOBS_A_CALL = 500

_SIGNALS = "ABRT ALRM CONT HUP INT KILL PIPE QUIT STOP TERM TSTP TTIN TTOU USR1 USR2 WINCH"
SIGNALS = frozenset(_SIGNALS.split(" "))
"""The signals that a job can get; every system knows these names."""

WARNINGS = {
    "ends_with_login": "The far side's login manager ends a user's processes at logout (KillUserProcesses=yes), and "
    "the job with them; `loginctl enable-linger` there prevents that.",
}

_ID = re.compile("[0-9a-f]{32}")
_LINE = re.compile(
    r"(?P<id>[0-9a-f]{32}) (?P<state>starting|running|exited|killed|timed_out|lost|gone) (?P<cap>[0-9]{1,18}|-) "
    r"(?P<status>[0-9]{1,3}|-) (?P<over>over|open|-) (?P<cut_out>[01]) (?P<cut_err>[01])"
)
_SIZE = re.compile(
    r"(?P<type>.)\S+ +[0-9]+ +[0-9]+ +[0-9]+ +(?P<size>[0-9]{1,18}) .* (?P<name>[0-9a-f]{32}/(?:out|err))"
)


@dataclass(frozen=True)
class Started:
    """A job that has begun: its directory, and the data by which the far side recognises its runner."""

    directory: bytes
    pid: int
    process_start: str
    boot: str
    warning: str | None = None


@dataclass(frozen=True)
class Stream:
    """The stored bytes of a stream, whether it has ended, and whether output was dropped."""

    size: int = 0
    ended: bool = True
    truncated: bool = False


@dataclass(frozen=True)
class Seen:
    """A job as last seen: ``starting``, ``running``, ``exited``, ``killed``, ``timed_out``, ``lost`` or ``gone``.

    A ``starting`` job has its directory, but its runner has not begun. The end of a ``lost`` job is unknown; the files
    of a ``gone`` job were removed. ``exit_code`` is 128 + N after signal N, and None if unknown.
    """

    state: str
    exit_code: int | None = None
    stdout: Stream = Stream()
    stderr: Stream = Stream()


class Spool:
    """The jobs of a link's user. Safe to use from several threads."""

    def __init__(self, transport: Transport, helpers: Helpers) -> None:
        self._transport = transport
        self._helpers = helpers

    def start(self, launch: Launch, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> Started:
        """Start a job. ``meanwhile`` is called while the far side starts it, and raises nothing.

        :raises connmgr.errors.NoSuchDirectory: its directory cannot be entered; nothing runs.
        :raises connmgr.errors.FileExists: there is a job of that id.
        :raises connmgr.errors.OperationError: there is no place for it, or the link broke.
        """
        deadline = Deadline(timeout)
        seconds = "" if launch.timeout is None else str(max(1, math.ceil(launch.timeout)))
        arguments = [_checked(launch.id), str(launch.cap), seconds, "1" if launch.stdin is OPEN else ""]
        rest = [launch.directory, launch.subdirectory, *launch.script, *launch.words]
        setting, stored = {"job_setting": launch.setting}, launch.stored_input
        program, sizes = (scripts.START_FED, _sizes(stored)) if stored else (scripts.START, [])
        with Exchange(self._transport, self._helpers, program, [*sizes, *arguments, *rest], setting) as exchange:
            meanwhile()
            if stored:
                exchange.answer(deadline.left())
                exchange.send([stored], len(stored))
            return _started(exchange.answer(deadline.left()))

    def look(self, ids: Iterable[str], timeout: float) -> dict[str, Seen]:
        """Return the state of each job by id, in one round trip for up to 500 jobs."""
        deadline, wanted = Deadline(timeout), list(map(_checked, ids))
        seen: dict[str, Seen] = {}
        for start in range(0, len(wanted), JOBS_A_CALL):
            some = wanted[start : start + JOBS_A_CALL]
            with self._run(scripts.LOOK, some) as exchange:
                exchange.answer(deadline.left())
                seen |= _described(_whole(exchange, DESCRIPTION_BYTES, deadline), some)
        return seen

    def read(
        self, id: str, stdout_offset: int, stderr_offset: int, max_bytes: int, timeout: float
    ) -> tuple[Seen, bytes, bytes, bytes]:
        """Return a job's state, up to ``max_bytes`` of each stream from an offset on, and its final directory."""
        deadline, offsets = Deadline(timeout), (stdout_offset, stderr_offset)
        blocks = max_bytes // BLOCK_BYTES + 2 if max_bytes else 0
        arguments = [_checked(id), *(str(offset // BLOCK_BYTES) for offset in offsets), str(blocks)]
        with self._run(scripts.READ, arguments) as exchange:
            exchange.answer(deadline.left())
            limit = DESCRIPTION_BYTES + (2 * blocks + 1) * BLOCK_BYTES
            answer = _whole(exchange, limit, deadline).split(exchange.mark + b" \n")
        if len(answer) != 4:
            raise TransferFailed("The far side sent malformed output of the job.")
        seen = _described(answer[0], [id])[id]
        parts = (
            content[offset % BLOCK_BYTES :][: max(0, min(max_bytes, stream.size - offset))]
            for content, offset, stream in zip(answer[1:3], offsets, (seen.stdout, seen.stderr), strict=True)
        )
        return seen, next(parts), next(parts), answer[3].removesuffix(b"\n")

    def input(self, id: str, data: bytes, eof: bool, timeout: float) -> None:
        """Queue ``data`` for a job, and with ``eof`` the end of its input; queued input arrives once and in order.

        :raises connmgr.errors.StdinClosed: the job takes no input, or none any more.
        :raises connmgr.errors.NoSpace: 8 MiB wait already, or the far side's disk is full.
        """
        deadline = Deadline(timeout)
        arguments = [*_sizes(data), _checked(id), "1" if eof else "", new_nonce(), str(QUEUE_BYTES)]
        with self._run(scripts.INPUT, arguments) as exchange:
            exchange.answer(deadline.left())
            if data:
                exchange.send([data], len(data))
            exchange.answer(deadline.left())

    def kill(self, id: str, signal: str, grace: float | None, timeout: float) -> Seen:
        """Send a signal to all processes of a job, and return its state just afterwards.

        With ``grace``, the far side kills processes that still run after so many seconds; the call does not wait for
        it. The job is ``killed`` if it ends after KILL or a signal with ``grace``, or by the signal itself.
        :raises connmgr.errors.PermissionDenied: some of them belong to another user.
        """
        if signal not in SIGNALS:
            raise InvalidRequest(f"signal: one of {', '.join(sorted(SIGNALS))}.")
        deadline = Deadline(timeout)
        tenths = "" if grace is None else str(math.ceil(grace * 10))
        note = "killed" if signal == "KILL" or grace is not None else "signal"
        with self._run(scripts.KILL, [_checked(id), signal, tenths, note]) as exchange:
            refused = exchange.answer(deadline.left())
            seen = _described(_whole(exchange, DESCRIPTION_BYTES, deadline), [id])[id]
        if refused != b"0":
            raise PermissionDenied("The far side's user may not send a signal to some of the job's processes.")
        return seen

    def remove(self, ids: Iterable[str], timeout: float) -> None:
        """Remove the files of jobs; running jobs go on. A missing job is not an error."""
        deadline, wanted = Deadline(timeout), list(map(_checked, ids))
        for start in range(0, len(wanted), JOBS_A_CALL):
            with self._run(scripts.REMOVE, wanted[start : start + JOBS_A_CALL]) as exchange:
                exchange.answer(deadline.left())

    def list(self, timeout: float, least_age: int = 0) -> dict[str, int | None]:
        """Return the ages in seconds of the jobs on the far side, by id; None if it cannot tell an age.

        With ``least_age`` only jobs that certainly began at least that many seconds ago.
        """
        deadline = Deadline(timeout)
        with self._run(scripts.LIST, [str(least_age)]) as exchange:
            exchange.answer(deadline.left())
            lines = _whole(exchange, DESCRIPTION_BYTES, deadline).decode(errors="replace").splitlines()
        words = (line.split() for line in lines)
        return {id: int(age) if age.isdigit() else None for id, age in words if _ID.fullmatch(id)}

    def _run(self, program: Program, arguments: Sequence[str | bytes]) -> Exchange:
        return Exchange(self._transport, self._helpers, program, arguments)


def _checked(id: str) -> str:
    if not _ID.fullmatch(id):
        raise InvalidRequest("id: 32 hexadecimal digits.")
    return id


def _sizes(data: bytes) -> list[str]:
    return [str(size) for size in (len(data), PIECE_BLOCK_BYTES, *divmod(len(data), PIECE_BLOCK_BYTES))]


def _started(facts: bytes) -> Started:
    words = facts.split(b" ", 4)
    if len(words) != 5 or not words[0].isdigit():
        raise TransferFailed("The far side did not say what it started.")
    pid, start, boot, warning = (word.decode(errors="replace") for word in words[:4])
    return Started(words[4], int(pid), start, boot, WARNINGS.get(warning))


def _whole(exchange: Exchange, limit: int, deadline: Deadline) -> bytes:
    collected = bytearray()
    for piece in exchange.data(deadline.left()):
        collected += piece
        if len(collected) > limit:
            raise TransferFailed(f"The far side sends more than {limit} bytes.")
    if not exchange.succeeded():
        raise TransferFailed("The link broke, or the far side's program was killed.")
    return bytes(collected)


def _described(text: bytes, ids: Sequence[str]) -> dict[str, Seen]:
    """Parse the lines of LOOK on each job.

    :raises connmgr.errors.TransferFailed: a job is missing.
    """
    lines = text.decode(errors="replace").splitlines()
    sizes = {found["name"]: int(found["size"]) for line in lines if (found := _SIZE.fullmatch(line))}
    seen = {found["id"]: _seen(found, sizes) for line in lines if (found := _LINE.fullmatch(line))}
    if missing := [id for id in ids if id not in seen]:
        raise TransferFailed(f"The far side did not describe the job {missing[0]}.")
    return seen


def _seen(found: re.Match[str], sizes: dict[str, int]) -> Seen:
    state, status, id = found["state"], found["status"], found["id"]
    if state == "gone" or f"{id}/out" not in sizes or f"{id}/err" not in sizes:
        return Seen("gone")
    ended = state == "lost" or found["over"] == "over"
    cap = int(found["cap"]) if found["cap"] != "-" else max(sizes.values())
    out, err = (
        Stream(min(size, cap), ended, size > cap or lost == "1")
        for size, lost in ((sizes[f"{id}/out"], found["cut_out"]), (sizes[f"{id}/err"], found["cut_err"]))
    )
    return Seen(state, int(status) if status.isdigit() else None, out, err)
