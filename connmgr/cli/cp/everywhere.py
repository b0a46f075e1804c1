"""``connmgr cp --all``: copies the same files to many connections at once, or from many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from connmgr.cli.cp.copy import Copy, Options
from connmgr.cli.cp.places import STREAM, Place, Shells, expanded, is_remote
from connmgr.cli.cp.plan import leads_out
from connmgr.cli.exits import FAILED, Failure
from connmgr.cli.output import counted
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import telling
from connmgr.printable import visible

Ends = Callable[[Client, Shells], tuple[list[Place], Place]]
"""Returns the sources and the target of one connection."""


class Manner(NamedTuple):
    """How files are copied, and by which shells: those of ``session``, or ``fresh`` ones."""

    options: Options
    session: str | None
    fresh: bool


class Outcome(NamedTuple):
    """The result on one connection: the connection's path, and what is printed."""

    name: str
    verdict: str
    said: str
    seconds: float


def to_all(
    client: Client, names: Sequence[Name], sources: Sequence[str], target: str, manner: Manner, jobs: int
) -> None:
    """Copy local files to all connections, or files of all connections to here, ``jobs`` at a time.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    told = telling(names)
    ends = _ends(told, sources, target)
    width = max((len(visible(name)) for name in told.values()), default=0)
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(_one, client.clone(), told[one.id], ends(one.id), manner) for one in names]
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


def _ends(told: dict[str, str], sources: Sequence[str], target: str) -> Callable[[str], Ends]:
    """Return a function from a connection's uuid to the ends of its copy.

    :raises click.UsageError: the operands are neither files for all connections nor files of all.
    """
    here = [not is_remote(text) for text in (*sources, target)]
    if target.startswith(":") and all(here[:-1]) and STREAM not in sources:
        return lambda id: lambda _, shells: ([*sources], shells.place(id, told[id], target[1:]))
    if not all(text.startswith(":") for text in sources) or not here[-1] or target == STREAM:
        raise click.UsageError(
            "With --all, files of this machine go to :path, the same path on each connection, or :path of each "
            "connection goes into a directory of this machine."
        )
    directories = _directories(told, Path(target).expanduser())

    def fetched(id: str) -> Ends:
        def ends(client: Client, shells: Shells) -> tuple[list[Place], Place]:
            places = [shells.place(id, told[id], text[1:]) for text in sources]
            found = [one for place in places for one in expanded(client, place)]
            directories[id].mkdir(parents=True, exist_ok=True)
            return found, str(directories[id])

        return ends

    return fetched


def _directories(told: dict[str, str], target: Path) -> dict[str, Path]:
    """Return for each connection the directory of its name in ``target``.

    :raises Failure: a name cannot be that of a directory, or two directories would lie in one another.
    """
    names = set(told.values())
    for name in names:
        if leads_out(name) or "\0" in name:
            raise Failure(f"{visible(name)!r} cannot be a directory's name: copy from that connection by itself.")
        parts = name.split("/")
        above = next((up for size in range(1, len(parts)) if (up := "/".join(parts[:size])) in names), None)
        if above is not None:
            raise Failure(
                f"{visible(name)} would go into the directory of {visible(above)}: copy from the two one after the "
                "other, into other directories."
            )
    return {id: target / name for id, name in told.items()}


def _one(client: Client, name: str, ends: Ends, manner: Manner) -> Outcome:
    copy, began = Copy(client, manner.options, None), time.monotonic()
    end: Place | None = None
    try:
        with client, Shells(client, manner.session, fresh=manner.fresh) as shells:
            sources, end = ends(client, shells)
            copy.run(sources, end)
        verdict = "failed" if copy.ledger.failures else "ok"
        said = copy.ledger.summary()
        if copy.ledger.failures:
            said = f"{said}; {copy.ledger.failures[0]}"
    except ClientError as error:
        verdict, said = error.code, error.message
    except Failure as error:
        verdict, said = "failed", error.message
    except OSError as error:
        verdict, said = "failed", f"{error.filename}: {error.strerror}"
    if isinstance(end, str):
        # Nothing was copied: the new directory is still empty.
        with suppress(OSError):
            Path(end).rmdir()
    return Outcome(name, verdict, said, time.monotonic() - began)
