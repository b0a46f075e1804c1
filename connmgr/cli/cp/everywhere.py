"""``connmgr cp --all``: the same files to many connections at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import click

from connmgr.cli.cp.copy import Copy, Options
from connmgr.cli.cp.places import STREAM, Place, Remote, is_local
from connmgr.cli.exits import FAILED, Failure
from connmgr.cli.names import telling
from connmgr.cli.outcome import ensure_shell
from connmgr.cli.output import counted, visible
from connmgr.cli.selection import Choice, chosen
from connmgr.client import Client, ClientError


class Outcome(NamedTuple):
    """What came of one connection: what it is called, and what is printed of it."""

    name: str
    verdict: str
    said: str
    seconds: float


def to_all(
    client: Client,
    patterns: Sequence[str],
    choice: Choice,
    sources: Sequence[str],
    target: str,
    options: Options,
    jobs: int,
    session: str | None,
) -> None:
    """Copy files of this machine to all connections that are chosen, ``jobs`` at a time.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    if not target.startswith(":") or STREAM in sources or not all(map(_is_here, sources)):
        raise click.UsageError("With --all, files of this machine go to :path, the same path on each connection.")
    names = chosen(client, patterns, choice, usage="shell")
    told = telling(names.names)
    width = max((len(visible(name)) for name in told.values()), default=0)
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(jobs) as pool:
        begun = [
            pool.submit(_one, client.clone(), sources, Remote(one.id, target[1:], session, told[one.id]), options)
            for one in names.names
        ]
        for future in as_completed(begun):
            done = future.result()
            failed += done.verdict != "ok"
            said = f"{visible(done.name).ljust(width)}  {done.verdict:<7}  {done.seconds:6.2f} s  {visible(done.said)}"
            click.echo(said.rstrip())
    seconds = time.monotonic() - began
    rest = f", {failed} failed" if failed else ""
    click.echo(f"{counted(len(begun), 'connection')} in {seconds:.1f} s: {len(begun) - failed} ok{rest}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _one(client: Client, sources: Sequence[Place], target: Remote, options: Options) -> Outcome:
    copy, began = Copy(client, options, None), time.monotonic()
    with client:
        try:
            ensure_shell(client, target.connection, target.session, target.name)
            copy.run(sources, target)
            verdict = "failed" if copy.ledger.failures else "ok"
            said = copy.ledger.summary()
            if copy.ledger.failures:
                said = f"{said}; {copy.ledger.failures[0]}"
        except ClientError as error:
            verdict, said = error.code, error.message
        except Failure as error:
            verdict, said = "failed", error.message
    return Outcome(target.name, verdict, said, time.monotonic() - began)


def _is_here(text: str) -> bool:
    return is_local(text) or ":" not in text
