"""``client.jobs``: commands that run on the far side independently of client and daemon.

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
from typing import Any, Final

from connmgr.client.endpoints import Group, Post, given, what_runs
from connmgr.client.errors import Unreachable
from connmgr.client.http import HttpSession
from connmgr.client.job_results import JobInfo, JobOutput, Orphan
from connmgr.client.retry import RETRY_SECONDS, OnRetry, Retry, has_done_nothing, may_pass

__all__ = ["OPEN", "Input", "Job", "JobInfo", "JobOutput", "Jobs", "Orphan"]

WAIT_SECONDS = 25.0
"""Longest wait for news that the daemon allows a request."""

ANSWER_SECONDS = 120.0
"""Seconds for an answer, in addition to the request's own wait: the daemon may have to open a link first."""

RETRY_TIMEOUT = 60.0
"""Default of ``retry_timeout`` in seconds; a restart of the daemon is shorter."""

PIECE_BYTES = 1 << 20


class Input(Enum):
    """A value of ``stdin`` that is not a text."""

    OPEN = "open"


OPEN: Final = Input.OPEN
"""The input comes later, by :meth:`Job.input`."""


class Jobs(Group):
    """``/job``."""

    def __init__(self, post: Post, session: HttpSession) -> None:
        super().__init__(post)
        self._session = session

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

        The far side ends it after ``timeout`` seconds, and keeps its files ``keep`` seconds after its end. Starting
        again with the same ``key`` returns the first job, so a start whose answer was lost can be repeated. With
        ``tell_directory``, :attr:`JobOutput.directory` is where a ``command`` ended.
        """
        fields = given(session=session, cwd=cwd, env=env, timeout=timeout, keep=keep, name=name, key=key)
        fields |= what_runs(command, argv, saved)
        fields |= given(tellDirectory=tell_directory, sendEnv=send_env, elevate=elevate)
        if isinstance(stdin, Input):
            fields["stdin"] = stdin.value
        elif isinstance(stdin, str) and stdin != OPEN.value:
            # As text, because a person who approves the job reads it.
            fields["stdin"] = stdin
        elif stdin is not None:
            fields |= _encoded(stdin=stdin)
        answer = self._post("/job/start", connection=connection, **fields)
        return Job(self._post, self._session, answer["job"], answer.get("warning"))

    def get(self, id: str) -> Job:
        """Return the job ``id``, without asking the daemon."""
        return Job(self._post, self._session, id)

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
        filters = {"connectionFilter": connection, "categoryFilter": category, "typeFilter": type}
        more = given(states=None if states is None else list(states), name=name, minAge=min_age, maxAge=max_age)
        return [JobInfo.read(one) for one in self._post("/job/query", **filters, **more)["jobs"]]

    def orphans(self, connection: str, *, remove: bool = False, min_age: float = 0.0) -> list[Orphan]:
        """Return the jobs on a machine that the vault does not know, begun at least ``min_age`` seconds ago.
        With ``remove``, ended ones are removed, including those of other vaults that use the same account.
        """
        with self._session.answered_within(ANSWER_SECONDS):
            answer = self._post("/job/orphans", connection=connection, remove=remove, minAge=min_age)
        return [Orphan(**one) for one in answer["orphans"]]


class Job:
    """A job, wherever it was started; for the thread of its client.

    If this client started it, ``warning`` says what may end it early. Methods that wait tolerate a broken connection, a
    restart of the daemon and an unreachable machine: they retry for up to ``retry_timeout`` seconds, and call
    ``on_retry`` with the error when retries begin.
    """

    def __init__(self, post: Post, session: HttpSession, id: str, warning: str | None = None) -> None:
        self._send = post
        self._session = session
        self.id = id
        self.warning = warning

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def info(self) -> JobInfo:
        """Describe the job as it is now."""
        return JobInfo.read(self._post("/job/info"))

    def output(
        self,
        stdout: int = 0,
        stderr: int = 0,
        *,
        wait: float = 0.0,
        until_exit: bool = False,
        max_bytes: int = PIECE_BYTES,
    ) -> JobOutput:
        """Return the output from two offsets on, at most ``max_bytes`` of each stream.
        If there is none, wait up to ``wait`` seconds for some, or with ``until_exit`` only for the end.
        """
        fields = {"stdout": stdout, "stderr": stderr, "maxBytes": max_bytes, "encoding": "base64"}
        until = "exit" if until_exit else "output"
        return JobOutput.read(self._post("/job/output", wait, wait=wait, until=until, **fields))

    def stream(
        self, stdout: int = 0, stderr: int = 0, *, retry_timeout: float = RETRY_TIMEOUT, on_retry: OnRetry | None = None
    ) -> Iterator[JobOutput]:
        """Yield the output from two offsets on as it comes, until the end; nothing is lost or repeated.

        :raises ClientError: the output was removed, or no attempt succeeded for ``retry_timeout`` seconds.
        """
        retry = Retry(retry_timeout, on_retry, may_pass)
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
                # A daemon that is stopping ends all waits at once.
                time.sleep(RETRY_SECONDS)

    def wait(
        self, timeout: float | None = None, *, retry_timeout: float = RETRY_TIMEOUT, on_retry: OnRetry | None = None
    ) -> JobInfo:
        """Wait for the end, at most ``timeout`` seconds, and describe the job."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        retry = Retry(min(retry_timeout, end - time.monotonic()), on_retry, may_pass)
        while True:
            began = time.monotonic()
            wait = min(max(end - began, 0.0), WAIT_SECONDS)
            info = JobInfo.read(retry.call(partial(self._post, "/job/wait", wait, wait=wait)))
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

        Return when the far side has stored the input, read or not. If there is no room because the job has not read
        earlier input, try again for ``retry_timeout`` seconds.
        """
        content = data.encode() if isinstance(data, str) else data
        retry = Retry(retry_timeout, on_retry, has_done_nothing)
        # Empty input counts as one piece too, because it may carry eof.
        for start in range(0, len(content) or 1, PIECE_BYTES):
            fields = _encoded(data=content[start : start + PIECE_BYTES])
            fields["eof"] = eof and start + PIECE_BYTES >= len(content)
            retry.call(partial(self._post, "/job/input", **fields))
            retry.succeeded()

    def kill(self, signal: str = "TERM", grace: float = 5.0) -> None:
        """Send a signal to all processes; after TERM, INT, HUP or QUIT, those left after ``grace`` seconds get KILL."""
        self._post("/job/kill", signal=signal, grace=grace)

    def remove(self, *, force: bool = False) -> None:
        """Remove a job that has ended, and its files on the far side; with ``force`` kill a running one first."""
        self._post("/job/remove", force=force)

    def _post(self, path: str, seconds: float = 0.0, /, **fields: Any) -> Any:
        """Send ``fields`` about this job to ``path``; the answer may take ``seconds`` longer than others."""
        with self._session.answered_within(seconds + ANSWER_SECONDS):
            return self._send(path, job=self.id, **fields)

    def _unreachable(self) -> Unreachable:
        return Unreachable(f"The machine of the job {self.id} does not answer.", sent=True)


def _encoded(**texts: str | bytes) -> dict[str, Any]:
    """Return fields of bytes as the API takes them."""
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in texts.items()}
    return {"encoding": "base64"} | {name: base64.b64encode(one).decode() for name, one in contents.items()}
