"""``connmgr exec --detach``: starts a command as a job, on one connection or on many."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import click

from connmgr.cli.gathered import OK, sum_up
from connmgr.cli.login import with_remedies
from connmgr.cli.outcome import ensure_shell, own_session
from connmgr.cli.output import print_json
from connmgr.cli.selection import Chosen
from connmgr.client import Client, ClientError
from connmgr.client.names import qualified, telling
from connmgr.printable import visible


class Started(NamedTuple):
    """The start of a job on a connection: the job's uuid and a warning of its machine, or why it failed."""

    connection: str
    job: str = ""
    warning: str | None = None
    failure: ClientError | None = None

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON, without its connection."""
        if self.failure is not None:
            return {"error": {"code": self.failure.code, "message": self.failure.message}}
        return {"job": self.job} | ({} if self.warning is None else {"warning": self.warning})


def start_job(client: Client, connection: str, path: str, /, *, fresh: bool, as_json: bool, **options: Any) -> None:
    """Start a command as a job beside the shell of the connection ``path``, and print the job's uuid."""
    started = _start(client, connection, path, fresh=fresh, **options)
    _warn(started, "connmgr")
    if as_json:
        print_json(started.as_object())
    else:
        click.echo(started.job)


def start_everywhere(
    client: Client,
    chosen: Chosen,
    options: dict[str, Any],
    jobs: int,
    *,
    as_json: bool,
) -> None:
    """Start a command as a job on each of the chosen connections, ``jobs`` at a time; print a line for each.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    names = {one.id: one for one in chosen.names}
    told = {id: visible(name) for id, name in telling(chosen.names).items()}
    width = max(map(len, told.values()), default=0)
    began = time.monotonic()
    verdicts = []
    for one in with_remedies(client, told, options["sudo"], lambda ids: _each(client, ids, told, jobs, **options)):
        verdicts.append(OK if one.failure is None else one.failure.code)
        _warn(one, told[one.connection])
        if as_json:
            head = {"connection": one.connection, "name": qualified(names[one.connection])}
            # Like an outcome that is not known yet, which has not failed.
            end = {"exitCode": None} if one.failure is None else {}
            print_json({**head, **one.as_object(), **end}, indent=None)
        else:
            said = one.job if one.failure is None else f"{one.failure.code}  {visible(one.failure.message)}"
            click.echo(f"{told[one.connection].ljust(width)}  {said}")
    sum_up(verdicts, chosen.of, time.monotonic() - began)


def _each(
    client: Client, ids: Sequence[str], told: dict[str, str], jobs: int, *, sudo: str | None, **options: Any
) -> Iterator[Started]:
    def start(other: Client, id: str) -> Started:
        try:
            with other:
                on = id if sudo is None else other.connection.elevate(id, sudo)
                return _start(other, on, told[id], **options)._replace(connection=id)
        except ClientError as error:
            return Started(id, failure=error)

    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(partial(start, client.clone()), id) for id in ids]
        for future in as_completed(begun):
            yield future.result()


def _start(
    client: Client,
    connection: str,
    path: str,
    /,
    *,
    fresh: bool,
    session: str | None,
    open_input: bool | None,
    **more: Any,
) -> Started:
    if open_input:
        from connmgr.client.jobs import OPEN

        more["stdin"] = OPEN
    with own_session(client, connection) if fresh else nullcontext(session) as used:
        ensure_shell(client, connection, used, path)
        started = client.jobs.start(connection, session=used, **more)
    return Started(connection, started.id, started.warning)


def _warn(started: Started, who: str) -> None:
    if started.warning is not None:
        click.echo(f"{who}: {visible(started.warning)}", err=True)
