"""The daemon's answers about jobs as named tuples; see :mod:`connmgr.client.results`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from connmgr.client.results import to_time


class JobInfo(NamedTuple):
    """The last known state of a job, ``stale`` if its machine could not be asked now.

    ``state`` is ``starting`` or ``running``, or at the end ``exited``, ``killed``, ``timed_out`` or ``lost``; ``ended``
    is None before the end. ``exit_code`` is None if unknown. ``keep`` is in seconds.
    """

    id: str
    connection: str
    session: str | None
    name: str | None
    key: str | None
    command: str | tuple[str, ...]
    state: str
    exit_code: int | None
    stdin_open: bool
    created: datetime
    ended: datetime | None
    keep: int
    stale: bool

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> JobInfo:
        command, ended = info["command"], info["ended"]
        return cls(
            id=info["job"],
            connection=info["connection"],
            session=info["session"],
            name=info["name"],
            key=info["key"],
            command=command if isinstance(command, str) else tuple(command),
            state=info["state"],
            exit_code=info["exitCode"],
            stdin_open=info["stdinOpen"],
            created=to_time(info["created"]),
            ended=None if ended is None else to_time(ended),
            keep=info["keep"],
            stale=info["stale"],
        )


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

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> JobOutput:
        stdout, stderr = answer["stdout"], answer["stderr"]
        return cls(
            stdout=base64.b64decode(stdout["data"]),
            stderr=base64.b64decode(stderr["data"]),
            next_stdout=stdout["next"],
            next_stderr=stderr["next"],
            ended=stdout["eof"] and stderr["eof"],
            truncated=answer["truncated"],
            state=answer["state"],
            exit_code=answer["exitCode"],
            stale=answer["stale"],
            stdout_size=stdout["size"],
            stderr_size=stderr["size"],
            directory=answer.get("directory"),
        )


class Orphan(NamedTuple):
    """A job that the vault does not know; ``age`` is in seconds, None if its machine cannot tell."""

    job: str
    state: str
    age: int | None
    removed: bool
