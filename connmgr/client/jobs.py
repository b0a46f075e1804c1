"""``client.jobs``: commands that run on the remote host independently of client and daemon.

job = client.jobs.start(connection, "make -j4 all", name="nightly")
for piece in job.stream():
    sys.stdout.buffer.write(piece.stdout)
print(job.info().exit_code)
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from connmgr.client.errors import Unreachable
from connmgr.client.group import Group, base64_of, elevate_of, list_of, saved_of, words_of
from connmgr.client.http import HttpSession
from connmgr.client.repeat import RETRY_SECONDS, RETRY_TIMEOUT, OnRetry, Retry, is_safe_to_retry, is_transient
from connmgr.contract import job as messages
from connmgr.contract.common import WaitingForInput
from connmgr.contract.job import JobInfo
from connmgr.contract.job import JobOrphan as Orphan
from connmgr.contract.message import Message

__all__ = ["OPEN", "Input", "Job", "JobInfo", "JobOutput", "Jobs", "Orphan"]

WAIT_SECONDS = float(messages.MAX_WAIT)
"""Longest wait for news that the daemon allows a request."""

ANSWER_SECONDS = 120.0
"""Seconds for an answer, in addition to the request's own wait: the daemon may have to open a link first."""

PIECE_BYTES = 1 << 20


class Input(Enum):
    """A value of ``stdin`` that is not a text."""

    OPEN = messages.OPEN


OPEN: Final = Input.OPEN
"""The input comes later, by :meth:`Job.input`."""


class JobOutput(NamedTuple):
    """The output of a job from two offsets on.

    ``next_stdout`` and ``next_stderr`` are the offsets to continue from, ``stdout_size`` and ``stderr_size`` the sizes
    so far, all in bytes. ``ended`` means that no output follows, ``truncated`` that some was dropped. ``directory`` is
    where the command ended, if that was asked for; the rest is as in :class:`JobInfo`.
    """

    stdout: bytes
    stderr: bytes
    next_stdout: int
    next_stderr: int
    ended: bool
    truncated: bool
    state: str
    exit_code: int | None
    stale: bool
    stdout_size: int
    stderr_size: int
    directory: str | None = None
    waiting: WaitingForInput | None = None

    @classmethod
    def of(cls, answer: messages.JobOutputResponse) -> JobOutput:
        """Return the output that an answer has in base64."""
        stdout, stderr = answer.stdout, answer.stderr
        return cls(
            stdout=base64.b64decode(stdout.data),
            stderr=base64.b64decode(stderr.data),
            next_stdout=stdout.next,
            next_stderr=stderr.next,
            ended=stdout.eof and stderr.eof,
            truncated=answer.truncated,
            state=answer.state,
            exit_code=answer.exit_code,
            stale=answer.stale,
            stdout_size=stdout.size,
            stderr_size=stderr.size,
            directory=answer.directory,
            waiting=answer.waiting,
        )


class Jobs(Group):
    """``/job``."""

    def start(
        self,
        connection: str,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        session: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | Input | None = None,
        timeout: float | None = None,
        keep: int | None = None,
        name: str | None = None,
        key: str | None = None,
        tell_directory: bool | None = None,
        send_env: Mapping[str, str] | None = None,
        elevate: Mapping[str, str] | None = None,
    ) -> Job:
        """Start ``command``, or the program ``argv``, beside a running shell, and return the job.

        The remote host ends it after ``timeout`` seconds, and keeps its files ``keep`` seconds after its end. Starting
        again with the same ``key`` returns the first job, so a start whose answer was lost can be repeated. With
        ``tell_directory``, :attr:`JobOutput.directory` is where a ``command`` ended.
        """
        # Text is sent as text, because a person who approves the job reads it; "open" as text would be the signal.
        if isinstance(stdin, Input):
            fields: dict[str, Any] = {"stdin": stdin.value}
        elif stdin is None or (isinstance(stdin, str) and stdin != OPEN.value):
            fields = {"stdin": stdin}
        else:
            fields = {"stdin": base64_of(stdin.encode() if isinstance(stdin, str) else stdin), "encoding": "base64"}
        fields |= {} if keep is None else {"keep": keep}
        request = messages.JobStartRequest(
            connection=connection,
            command=command,
            argv=words_of(argv),
            saved=saved_of(saved),
            session=session,
            cwd=cwd,
            env=env,
            timeout=timeout,
            name=name,
            key=key,
            tell_directory=bool(tell_directory),
            send_env=send_env,
            elevate=elevate_of(elevate),
            **fields,
        )
        answer = self._ask("/job/start", request, messages.JobStartResponse)
        return Job(self._http, answer.job, answer.warning)

    def get(self, id: str) -> Job:
        """Return the job ``id``, without asking the daemon."""
        return Job(self._http, id)

    def query(
        self,
        connection: str = "*",
        *,
        category: str = "*",
        type: str = "*",
        states: Sequence[str] | None = None,
        name: str | None = None,
        min_age: float | None = None,
        max_age: float | None = None,
    ) -> list[JobInfo]:
        """Return the jobs that all filters match, oldest first; ages are in seconds since the start."""
        request = messages.JobQueryRequest(
            connection_filter=connection,
            category_filter=category,
            type_filter=type,
            states=list_of(states),
            name=name,
            min_age=min_age,
            max_age=max_age,
        )
        return self._ask("/job/query", request, messages.JobQueryResponse).jobs

    def orphans(self, connection: str, *, remove: bool = False, min_age: float = 0.0) -> list[Orphan]:
        """Return the jobs on a machine that the vault does not know, begun at least ``min_age`` seconds ago.
        With ``remove``, ended ones are removed, including those of other vaults that use the same account.
        """
        request = messages.JobOrphansRequest(connection=connection, remove=remove, min_age=min_age)
        return self._ask("/job/orphans", request, messages.JobOrphansResponse, ANSWER_SECONDS).orphans


class Job(Group):
    """A job, wherever it was started; for the thread of its client.

    If this client started it, ``warning`` says what may end it early. Methods that wait tolerate a broken connection, a
    restart of the daemon and an unreachable machine: they retry for up to ``retry_timeout`` seconds, and call
    ``on_retry`` with the error when retries begin.
    """

    def __init__(self, http: HttpSession, id: str, warning: str | None = None) -> None:
        super().__init__(http)
        self.id = id
        self.warning = warning

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def info(self) -> JobInfo:
        """Describe the job as it is now."""
        return self._ask("/job/info", messages.JobRequest(job=self.id), JobInfo)

    def output(
        self,
        stdout: int = 0,
        stderr: int = 0,
        *,
        wait: float = 0.0,
        until_exit: bool = False,
        until_input: bool = False,
        max_bytes: int = PIECE_BYTES,
    ) -> JobOutput:
        """Return the output from two offsets on, at most ``max_bytes`` of each stream.
        If there is none, wait up to ``wait`` seconds for some, or with ``until_exit`` only for the end, with
        ``until_input`` for the end or that it waits for input.
        """
        request = messages.JobOutputRequest(
            job=self.id,
            stdout=stdout,
            stderr=stderr,
            wait=wait,
            until="input" if until_input else "exit" if until_exit else "output",
            max_bytes=max_bytes,
            encoding="base64",
        )
        return JobOutput.of(self._ask("/job/output", request, messages.JobOutputResponse, wait))

    def stream(
        self, stdout: int = 0, stderr: int = 0, *, retry_timeout: float = RETRY_TIMEOUT, on_retry: OnRetry | None = None
    ) -> Iterator[JobOutput]:
        """Yield the output from two offsets on as it comes, until the end; nothing is lost or repeated.

        :raises ClientError: the output was removed, or no attempt succeeded for ``retry_timeout`` seconds.
        """
        retry = Retry(retry_timeout, on_retry, is_transient)
        while True:
            began = time.monotonic()
            piece = retry.call(partial(self.output, stdout, stderr, wait=WAIT_SECONDS))
            if piece.stdout or piece.stderr or piece.ended:
                yield piece
            if piece.ended:
                return
            stdout, stderr = piece.next_stdout, piece.next_stderr
            if piece.stale:
                retry.pause(self._unreachable())
                continue
            retry.succeeded()
            if not (piece.stdout or piece.stderr) and time.monotonic() < began + RETRY_SECONDS:
                # A daemon that is stopping ends all waits at once, and would be asked in a busy loop.
                time.sleep(RETRY_SECONDS)

    def wait(
        self, timeout: float | None = None, *, retry_timeout: float = RETRY_TIMEOUT, on_retry: OnRetry | None = None
    ) -> JobInfo:
        """Wait for the end, at most ``timeout`` seconds, and describe the job."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        retry = Retry(min(retry_timeout, end - time.monotonic()), on_retry, is_transient)
        while True:
            began = time.monotonic()
            wait = min(max(end - began, 0.0), WAIT_SECONDS)
            request = messages.JobWaitRequest(job=self.id, wait=wait)
            info = retry.call(partial(self._ask, "/job/wait", request, JobInfo, wait))
            if info.ended is not None or time.monotonic() >= end:
                return info
            if info.stale:
                retry.pause(self._unreachable())
                continue
            retry.succeeded()
            if time.monotonic() < began + RETRY_SECONDS:
                time.sleep(min(RETRY_SECONDS, max(end - time.monotonic(), 0.0)))

    def input(
        self, data: str | bytes, *, eof: bool = False, retry_timeout: float = 0.0, on_retry: OnRetry | None = None
    ) -> None:
        """Send more input to a job that was started with :data:`OPEN`; with ``eof`` end its input.

        Return when the remote host has stored the input, read or not. If there is no room because the job has not read
        earlier input, try again for ``retry_timeout`` seconds.
        """
        content = data.encode() if isinstance(data, str) else data
        retry = Retry(retry_timeout, on_retry, is_safe_to_retry)
        # Empty input counts as one piece too, because it may carry eof.
        for start in range(0, len(content) or 1, PIECE_BYTES):
            piece = base64_of(content[start : start + PIECE_BYTES])
            ends = eof and start + PIECE_BYTES >= len(content)
            request = messages.JobInputRequest(job=self.id, data=piece, encoding="base64", eof=ends)
            retry.call(partial(self._tell, "/job/input", request))
            retry.succeeded()

    def kill(self, signal: str = "TERM", grace: float = 5.0) -> None:
        """Send a signal to all processes; after TERM, INT, HUP or QUIT, those left after ``grace`` seconds get KILL."""
        self._tell("/job/kill", messages.JobKillRequest(job=self.id, signal=signal, grace=grace))

    def remove(self, *, force: bool = False) -> None:
        """Remove a job that has ended, and its files on the remote host; with ``force`` kill a running one first."""
        self._tell("/job/remove", messages.JobRemoveRequest(job=self.id, force=force))

    def _tell(self, path: str, request: Message | None = None, seconds: float | None = None) -> Any:
        """Send a request; its answer may take ``seconds`` longer than others."""
        return super()._tell(path, request, (seconds or 0.0) + ANSWER_SECONDS)

    def _unreachable(self) -> Unreachable:
        return Unreachable(f"The machine of the job {self.id} does not answer.", sent=True)
