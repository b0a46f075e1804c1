"""``connmgr job wait`` for several jobs: which ones, and how all of them have ended."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import IO, Any, NamedTuple

import click

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.gathered import OK, sum_up
from connmgr.cli.job_names import find_job, outcome
from connmgr.cli.output import print_json
from connmgr.client import Client, ClientError
from connmgr.client.jobs import JobInfo
from connmgr.client.names import UUID
from connmgr.printable import visible

WAITS = 64
"""Requests that wait at a time; a job that ended meanwhile answers at once."""

_FAILED_START = re.compile(r"(?P<name>\S.*?) {2,}(?P<code>[a-z]+(?:_[a-z]+)*) {2,}(?P<message>.*)")


class Ended(NamedTuple):
    """How a job has ended; ``job`` is empty if it was not begun."""

    job: str
    info: JobInfo | None = None
    raw: dict[str, Any] | None = None
    error: tuple[str, str] | None = None
    """Code and message, in place of the other two."""

    name: str = ""

    @property
    def verdict(self) -> str:
        if self.info is None:
            return self.error[0] if self.error else "unknown"
        if self.info.state != "exited" or self.info.exit_code is None:
            return self.info.state
        return f"exit {self.info.exit_code}" if self.info.exit_code else OK


def wait_for_all(
    client: Client, names: Sequence[str], file: IO[str] | None, *, everywhere: bool, as_json: bool
) -> None:
    """Wait for all jobs that are named or stand in ``file``, and print a line for each.

    :raises Failure: a name means no job, or with ``everywhere`` none has it; or a line of ``file`` is of no job.
    :raises click.exceptions.Exit: with 1, one of them has failed.
    """
    began = time.monotonic()
    failed, ids = _read(file) if file is not None else ([], [])
    ids += [id for name in names for id in (_all_called(client, name) if everywhere else [find_job(client, name).id])]
    verdicts = []
    for one in (*failed, *_ends(client, list(dict.fromkeys(ids)))):
        verdicts.append(one.verdict)
        if as_json:
            print_json(_object(one), indent=None)
        else:
            click.echo(_line(client, one))
    sum_up(verdicts, len(verdicts), time.monotonic() - began, noun="job")


def _all_called(client: Client, name: str) -> list[str]:
    if UUID.fullmatch(name):
        return [name.lower()]
    found = [one.id for one in client.jobs.query() if name in (one.name, one.key)]
    if not found:
        raise Failure(f"No job has the name or key {name!r}. `connmgr job ls` lists them.", NOT_FOUND)
    return found


def _read(lines: Iterable[str]) -> tuple[list[Ended], list[str]]:
    """Return the starts that failed, and the uuids of the jobs that were begun."""
    failed, ids = [], []
    for number, line in enumerate(lines, 1):
        try:
            # Of `exec --all --detach --json`.
            told = json.loads(line)
            if "error" in told:
                failed.append(Ended("", error=(told["error"]["code"], told["error"]["message"]), name=told["name"]))
            else:
                ids.append(str(told["job"]))
        except (ValueError, TypeError, KeyError):
            if (start := _failed_start(line)) is not None:
                failed.append(start)
                continue
            found = [one[0] for one in UUID.finditer(line)]
            if line.strip() and not found:
                raise Failure(f"--from: line {number} has no uuid of a job: {visible(line.strip())}") from None
            ids += [one.lower() for one in found[-1:]]
    return failed, ids


def _failed_start(line: str) -> Ended | None:
    """Return what a line of `exec --all --detach` without `--json` says of a job that was not begun."""
    parts = _FAILED_START.fullmatch(line.rstrip("\n"))
    if parts is None or UUID.fullmatch(parts["name"]):
        return None
    return Ended("", error=(parts["code"], parts["message"]), name=parts["name"])


def _ends(client: Client, ids: Sequence[str]) -> Iterator[Ended]:
    def end(other: Client, id: str) -> Ended:
        with other:
            try:
                found = other.jobs.get(id)
                if found.info().ended is None:
                    found.wait(retry_timeout=math.inf)
                raw = other.post("/job/info", job=id)
            except ClientError as error:
                return Ended(id, error=(error.code, error.message))
            return Ended(id, JobInfo.read(raw), raw)

    with ThreadPoolExecutor(min(WAITS, len(ids)) or 1) as pool:
        begun = [pool.submit(end, client.clone(), id) for id in ids]
        for future in as_completed(begun):
            yield future.result()


def _object(one: Ended) -> dict[str, Any]:
    if one.raw is not None:
        return one.raw
    code, message = one.error or ("unknown", "")
    about = {"job": one.job} if one.job else {"job": None, "name": one.name}
    return {**about, "error": {"code": code, "message": message}}


def _line(client: Client, one: Ended) -> str:
    if one.info is None:
        code, message = one.error or ("unknown", "")
        return f"{visible(one.job or one.name)}  {code}  {visible(message)}"
    path = client.connection.info([one.info.connection])[0].path
    return f"{one.job}  {visible(path)}  {outcome(one.info)}"
