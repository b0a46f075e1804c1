"""The daemon's answers about jobs as named tuples; see :mod:`connmgr.client.results`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from connmgr.contract.job import JobInfo as JobInfo


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
