"""The jobs of a remote host: started, looked at, fed and ended there, without any state in the daemon.

Its programs in ``scripts/`` run in a helper, as the user of the connection, and answer as
:class:`connmgr.engine.rpc.Exchange` expects. They need only POSIX.1-2017; if present they use setsid, /proc, and the
extensions of dd and stat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from connmgr import errors
from connmgr.engine.kill import TREE
from connmgr.engine.rpc import EXCHANGE, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import Source, new_nonce, quote
from connmgr.engine.waiting import TAIL_BYTES, WaitingWork, blocked, last_lines, waiting_work
from connmgr.errors import InvalidRequest, PermissionDenied, TransferFailed
from connmgr.jobs.launch import OPEN, Launch
from connmgr.links.link import Link, Outdated
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.plugin import Deadline, Transport
from connmgr.secrets.principals import Access

REFUSALS: dict[str, errors.ConnmgrError] = {
    error.code: error
    for error in (
        errors.NoSuchDirectory("The job's working directory cannot be entered."),
        errors.NoSuchFile("The job's directory on the remote host is gone."),
        errors.FileExists("A job of that id exists already."),
        errors.WrongFileType("The directory for the user's jobs is not a directory."),
        errors.PermissionDenied("The remote host's user has no permission for that."),
        errors.NoSpace("The remote host has no space left for that."),
        errors.StdinClosed("The job no longer takes input."),
        errors.TransferFailed("The input did not arrive whole; send it again."),
        errors.FileOperationFailed("The operation on the job failed on the remote host."),
    )
}


@dataclass(frozen=True)
class _Variable(Source):
    """Programs, joined, as the value of a variable of that name."""

    package: str
    name: str
    language: str = "sh"
    sources: tuple[Source, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}={quote(''.join(source.text for source in self.sources).encode()).decode()}\n"


_STATE = Source(__package__, "state")
_LIBRARY = (
    EXCHANGE,
    Source(__package__, "prelude"),
    _STATE,
    _Variable(__package__, "job_runner", sources=(Source(__package__, "runner"),)),
    _Variable(__package__, "job_terminator", sources=(_STATE, TREE, Source(__package__, "terminate"))),
)


_SIZES = "size=$1 block=$2 blocks=$3 left=$4; shift 4"


def _program(name: str, *more: str, opening: str = "", fed: bool = False, goes_on: bool = False) -> RemoteProgram:
    body = tuple(Source(__package__, file) for file in (name, *more))
    places = Source(__package__, "places")
    return RemoteProgram(f"job_run_{name}", _LIBRARY, body, places, opening, fed, goes_on, REFUSALS)


START = _program("start", opening="fed=", goes_on=True)
"""``id cap seconds open directory cwd``, the script in two parts, ``clean tell``, and the argv of a shell that runs
the script on descriptor 7: the two parts, with the variable ``job_setting`` between them.

``ok``, the runner's process id and start time, the system's boot, a warning or ``-``, and the job's directory.
"""

START_FED = replace(START, name="job_run_start_fed", opening=f"fed=1; {_SIZES}", fed=True)
"""The input's size and block size as for WRITE in :mod:`connmgr.fs.remote`; then as START.

``ok`` when it is ready for the input; then as START, when the input is stored.
"""

LOOK = _program("look", "describe")
"""``id …``. ``ok``, then per job a line: id, state, cap, status, ``over``, lost output; then the output of ls."""

READ = _program("read", "describe", "content")
"""``id block block count``. As LOOK; after a mark each, the blocks of both streams and the final directory."""

KILL = _program("kill", "describe")
"""``id signal grace note``. ``ok`` and the number of processes that refused the signal; then as LOOK."""

INPUT = _program("input", opening=_SIZES, fed=True)
"""The sizes as for START_FED, ``id eof nonce``, and the most bytes of unread input.

``ok`` when it is ready for the data, and ``ok`` when they are stored.
"""

REMOVE = _program("remove")
"""``id …``. ``ok``."""

LIST = _program("list")
"""``seconds``. ``ok``, then lines on jobs that began at least so long ago: id, and age in seconds or ``-``."""


BLOCK_BYTES = 4096
"""Block size of the remote host for reads of a stream."""

PIECE_BLOCK_BYTES = 64 << 10
QUEUE_BYTES = 8 << 20
"""Most bytes of unread input of a job; more is refused."""

DESCRIPTION_BYTES = 1 << 20
JOBS_A_CALL = 500

_SIGNALS = "ABRT ALRM CONT HUP INT KILL PIPE QUIT STOP TERM TSTP TTIN TTOU USR1 USR2 WINCH"
SIGNALS = frozenset(_SIGNALS.split(" "))
"""The signals that a job can get; every system knows these names."""

WARNINGS = {
    "ends_with_login": "The remote host's login manager ends a user's processes at logout (KillUserProcesses=yes), and "
    "the job with them; `loginctl enable-linger` there prevents that.",
}

_MARK = "CONNMGR_JOB="
"""Followed by a job's id: what each of its processes has in its environment."""

_ID = re.compile("[0-9a-f]{32}")
_LINE = re.compile(
    r"(?P<id>[0-9a-f]{32}) (?P<state>starting|running|exited|killed|timed_out|lost|gone) (?P<cap>[0-9]{1,18}|-) "
    r"(?P<status>[0-9]{1,3}|-) (?P<over>over|open|-) (?P<cut_out>[01]) (?P<cut_err>[01])"
)
_SIZE = re.compile(
    r"(?P<type>.)\S+ +[0-9]+ +[0-9]+ +[0-9]+ +(?P<size>[0-9]{1,18}) .* (?P<name>[0-9a-f]{32}/(?:out|err))"
)


@dataclass(frozen=True)
class JobStream:
    """The stored bytes of a stream, whether it has ended, and whether output was dropped."""

    size: int = 0
    ended: bool = True
    truncated: bool = False


@dataclass(frozen=True)
class RemoteJob:
    """A job as last seen: ``starting``, ``running``, ``exited``, ``killed``, ``timed_out``, ``lost`` or ``gone``.

    A ``starting`` job has its directory, but its runner has not begun. The end of a ``lost`` job is unknown; the files
    of a ``gone`` job were removed. ``exit_code`` is 128 + N after signal N, and None if unknown. ``waiting`` is there
    while a running job is known to wait for input.
    """

    state: str
    exit_code: int | None = None
    stdout: JobStream = JobStream()
    stderr: JobStream = JobStream()
    waiting: WaitingWork | None = None


class RemoteJobs:
    """The jobs of a link's user. Safe to use from several threads."""

    def __init__(self, transport: Transport, helpers: Helpers) -> None:
        self._transport = transport
        self._helpers = helpers

    def start(self, launch: Launch, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> str | None:
        """Start a job, and return a warning about the remote host, if any.

        ``meanwhile``, which raises nothing, is called after the call was written to the remote host.

        :raises connmgr.errors.NoSuchDirectory: its directory cannot be entered; nothing runs.
        :raises connmgr.errors.FileExists: there is a job of that id.
        :raises connmgr.errors.OperationError: the remote host has no directory for it, or the link broke.
        """
        deadline = Deadline(timeout)
        seconds = "" if launch.timeout is None else str(max(1, math.ceil(launch.timeout)))
        arguments = [_checked(launch.id), str(launch.cap), seconds, "1" if launch.stdin is OPEN else ""]
        rest = [launch.directory, launch.subdirectory, *launch.script, *launch.words]
        setting, large_input = {"job_setting": launch.setting}, launch.stored_input
        program, sizes = (START_FED, _sizes(large_input)) if large_input else (START, [])
        with Exchange(self._transport, self._helpers, program, [*sizes, *arguments, *rest], setting) as exchange:
            # Between the call and its answer, which takes the remote host some milliseconds.
            meanwhile()
            if large_input:
                exchange.answer(deadline.left())
                exchange.send([large_input], len(large_input))
            return _warning(exchange.answer(deadline.left()))

    def look(self, ids: Iterable[str], timeout: float) -> dict[str, RemoteJob]:
        """Return the state of each job by id, in one round trip for up to 500 jobs."""
        deadline, checked = Deadline(timeout), list(map(_checked, ids))
        states: dict[str, RemoteJob] = {}
        for start in range(0, len(checked), JOBS_A_CALL):
            some = checked[start : start + JOBS_A_CALL]
            with self._run(LOOK, some) as exchange:
                exchange.answer(deadline.left())
                states |= _described(_whole(exchange, DESCRIPTION_BYTES, deadline), some)
        return states

    def waiting(self, jobs: Mapping[str, RemoteJob], timeout: float) -> dict[str, RemoteJob]:
        """Return the silent ``jobs`` by id, each with the input that it waits for now, if any."""
        deadline = Deadline(timeout)
        blocked_jobs = blocked(self._transport, self._helpers, (_MARK + _checked(id) for id in jobs), deadline.left())
        states = {}
        for id, job in jobs.items():
            waits = blocked_jobs.get(_MARK + id)
            printed: list[list[str]] = []
            if waits is not None:
                ends = (job.stdout.size, job.stderr.size)
                # The prompt, if there is one, is the last line; it has no newline yet.
                offsets = [max(0, end - TAIL_BYTES) for end in ends]
                _, *tails, _ = self.read(id, offsets[0], offsets[1], TAIL_BYTES, deadline.left())
                printed = [last_lines(tail) for tail in tails]
            states[id] = replace(job, waiting=waiting_work(waits, *printed, before=job.waiting))
        return states

    def read(
        self, id: str, stdout_offset: int, stderr_offset: int, max_bytes: int, timeout: float
    ) -> tuple[RemoteJob, bytes, bytes, bytes]:
        """Return a job's state, up to ``max_bytes`` of each stream from an offset on, and its final directory."""
        deadline, offsets = Deadline(timeout), (stdout_offset, stderr_offset)
        # One block more for an offset within a block, and one for an end within a block.
        blocks = max_bytes // BLOCK_BYTES + 2 if max_bytes else 0
        arguments = [_checked(id), *(str(offset // BLOCK_BYTES) for offset in offsets), str(blocks)]
        with self._run(READ, arguments) as exchange:
            exchange.answer(deadline.left())
            limit = DESCRIPTION_BYTES + (2 * blocks + 1) * BLOCK_BYTES
            answer = _whole(exchange, limit, deadline).split(exchange.mark + b" \n")
        if len(answer) != 4:
            raise TransferFailed("The remote host sent malformed output of the job.")
        state = _described(answer[0], [id])[id]
        # dd reads whole blocks, so the first one begins before the offset; and the job may have printed more since the
        # sizes were read.
        parts = (
            content[offset % BLOCK_BYTES :][: max(0, min(max_bytes, stream.size - offset))]
            for content, offset, stream in zip(answer[1:3], offsets, (state.stdout, state.stderr), strict=True)
        )
        return state, next(parts), next(parts), answer[3].removesuffix(b"\n")

    def input(self, id: str, data: bytes, eof: bool, timeout: float) -> None:
        """Queue ``data`` for a job, and with ``eof`` the end of its input; queued input arrives once and in order.

        :raises connmgr.errors.StdinClosed: the job takes no input, or takes no more.
        :raises connmgr.errors.NoSpace: 8 MiB wait already, or the remote host's disk is full.
        """
        deadline = Deadline(timeout)
        arguments = [*_sizes(data), _checked(id), "1" if eof else "", new_nonce(), str(QUEUE_BYTES)]
        with self._run(INPUT, arguments) as exchange:
            exchange.answer(deadline.left())
            if data:
                exchange.send([data], len(data))
            exchange.answer(deadline.left())

    def kill(self, id: str, signal: str, grace: float | None, timeout: float) -> RemoteJob:
        """Send a signal to all processes of a job, and return its state just afterwards.

        With ``grace``, the remote host kills processes that still run after so many seconds; the call does not wait for
        that. The job is ``killed`` if it ends after KILL or a signal with ``grace``, or by the signal itself.
        :raises connmgr.errors.PermissionDenied: some processes belong to another user.
        """
        if signal not in SIGNALS:
            raise InvalidRequest(f"signal: one of {', '.join(sorted(SIGNALS))}.")
        deadline = Deadline(timeout)
        tenths = "" if grace is None else str(math.ceil(grace * 10))
        # What the runner finds when the program ends, and by which it tells a kill from an end of the program's own.
        note = "killed" if signal == "KILL" or grace is not None else "signal"
        with self._run(KILL, [_checked(id), signal, tenths, note]) as exchange:
            refused = exchange.answer(deadline.left())
            state = _described(_whole(exchange, DESCRIPTION_BYTES, deadline), [id])[id]
        if refused != b"0":
            raise PermissionDenied("The remote host's user may not send a signal to some of the job's processes.")
        return state

    def remove(self, ids: Iterable[str], timeout: float) -> None:
        """Remove the files of jobs; running jobs go on. A missing job is not an error."""
        deadline, checked = Deadline(timeout), list(map(_checked, ids))
        for start in range(0, len(checked), JOBS_A_CALL):
            with self._run(REMOVE, checked[start : start + JOBS_A_CALL]) as exchange:
                exchange.answer(deadline.left())

    def list(self, timeout: float, least_age: int = 0) -> dict[str, int | None]:
        """Return the ages in seconds of the jobs on the remote host, by id; None if it cannot tell an age.

        With ``least_age`` only jobs that certainly began at least that many seconds ago.
        """
        deadline = Deadline(timeout)
        with self._run(LIST, [str(least_age)]) as exchange:
            exchange.answer(deadline.left())
            lines = _whole(exchange, DESCRIPTION_BYTES, deadline).decode(errors="replace").splitlines()
        words = (line.split() for line in lines)
        return {id: int(age) if age.isdigit() else None for id, age in words if _ID.fullmatch(id)}

    def _run(self, program: RemoteProgram, arguments: Sequence[str | bytes]) -> Exchange:
        return Exchange(self._transport, self._helpers, program, arguments)


def _checked(id: str) -> str:
    if not _ID.fullmatch(id):
        raise InvalidRequest("id: 32 hexadecimal digits.")
    return id


def _sizes(data: bytes) -> list[str]:
    return [str(size) for size in (len(data), PIECE_BLOCK_BYTES, *divmod(len(data), PIECE_BLOCK_BYTES))]


def _warning(facts: bytes) -> str | None:
    """Return the warning in the answer to START: process, its start time, boot, warning, directory."""
    words = facts.split(b" ", 4)
    if len(words) != 5 or not words[0].isdigit():
        raise TransferFailed("The remote host's answer to the start of the job is malformed.")
    return WARNINGS.get(words[3].decode(errors="replace"))


def _whole(exchange: Exchange, limit: int, deadline: Deadline) -> bytes:
    collected = bytearray()
    for piece in exchange.data(deadline.left()):
        collected += piece
        if len(collected) > limit:
            raise TransferFailed(f"The remote host sends more than {limit} bytes.")
    if not exchange.succeeded():
        raise TransferFailed("The link broke, or the remote host's program was killed.")
    return bytes(collected)


def _described(text: bytes, ids: Sequence[str]) -> dict[str, RemoteJob]:
    """Parse the lines of LOOK on each job.

    :raises connmgr.errors.TransferFailed: a job is missing.
    """
    lines = text.decode(errors="replace").splitlines()
    sizes = {match["name"]: int(match["size"]) for line in lines if (match := _SIZE.fullmatch(line))}
    states = {match["id"]: _seen(match, sizes) for line in lines if (match := _LINE.fullmatch(line))}
    if missing := [id for id in ids if id not in states]:
        raise TransferFailed(f"The remote host did not describe the job {missing[0]}.")
    return states


def _seen(match: re.Match[str], sizes: dict[str, int]) -> RemoteJob:
    state, status, id = match["state"], match["status"], match["id"]
    if state == "gone" or f"{id}/out" not in sizes or f"{id}/err" not in sizes:
        # Without its streams it is being removed.
        return RemoteJob("gone")
    ended = state == "lost" or match["over"] == "over"
    # Without a cap its runner has not noted itself yet, and nothing can have been cut off.
    cap = int(match["cap"]) if match["cap"] != "-" else max(sizes.values())
    out, err = (
        JobStream(min(size, cap), ended, size > cap or lost == "1")
        for size, lost in ((sizes[f"{id}/out"], match["cut_out"]), (sizes[f"{id}/err"], match["cut_err"]))
    )
    return RemoteJob(state, int(status) if status.isdigit() else None, out, err)


Result = TypeVar("Result")

OPEN_SECONDS = 30.0
UNREACHABLE = (
    errors.HostUnresolved,
    errors.HostRefused,
    errors.HostUnreachable,
    errors.ConnectTimeout,
    errors.ShellLost,
    errors.TransferFailed,
)
"""The errors of a remote host that is unreachable now."""


class RemoteHosts:
    """Runs calls to the remote hosts of jobs over open links, or opens a link and keeps it for a while.

    Safe to use from several threads.
    """

    def __init__(self, links: LinkTable, idle_links: IdleLinks) -> None:
        self._links = links
        self._idle_links = idle_links

    def allows(self, connection: str, access: Access) -> bool:
        """Whether there is an open link to the connection that ``access`` may use.

        :raises connmgr.errors.SecretLocked: it may not.
        """
        lease = self._links.peek(connection)
        if lease is None:
            return False
        try:
            lease.link.admission.check(access)
        except Outdated:
            return False
        finally:
            lease.release()
        return True

    def ask(
        self, connection: str, access: Access, work: Callable[[RemoteJobs], Result], *, shared: bool = True
    ) -> Result:
        """Like :meth:`ask_once`, but try once more if the link broke, because it may have been dead for long.

        ``work`` must be safe to repeat: the first call may have taken effect.
        """
        try:
            return self.ask_once(connection, access, work, shared=shared)
        except (errors.ShellLost, errors.TransferFailed):
            return self.ask_once(connection, access, work, shared=shared)

    def ask_once(
        self, connection: str, access: Access, work: Callable[[RemoteJobs], Result], *, shared: bool = True
    ) -> Result:
        """Call ``work`` with the remote host of ``connection``, if necessary over a new link, and return its result.

        The jobs of a container without a shell are kept on its host, among other jobs of that host's user. ``shared``
        leads there; ``work`` that looks for jobs that the vault does not know must not be ``shared``.
        :raises connmgr.errors.ConnmgrError: the errors of opening the link, including :data:`UNREACHABLE`.
        """
        lease = self._links.lease(connection, access, OPEN_SECONDS)
        try:
            self._idle_links.keep(connection, lease)
            return _worked(lease.link, work, shared=shared)
        finally:
            lease.release()

    def ask_at_once(self, connection: str, work: Callable[[RemoteJobs], Result]) -> Result | None:
        """Like :meth:`ask`, with the daemon's own access and only over an open link; return None without one."""
        lease = self._links.peek(connection)
        if lease is None:
            return None
        try:
            return _worked(lease.link, work, shared=True)
        except errors.ConnmgrError:
            return None
        finally:
            lease.release()


def remote_jobs_of(link: Link) -> RemoteJobs:
    """Return the remote jobs of a link; for a container without a shell they are on its host."""
    beside = link.outside
    return RemoteJobs(link.transport, link.helpers) if beside is None else RemoteJobs(beside.transport, beside.helpers)


def _worked(link: Link, work: Callable[[RemoteJobs], Result], *, shared: bool) -> Result:
    if not shared:
        return work(RemoteJobs(link.transport, link.helpers))
    try:
        return work(remote_jobs_of(link))
    except errors.NoShellInside:
        if link.look_for_shell(OPEN_SECONDS) is None:
            raise
        return work(remote_jobs_of(link))
