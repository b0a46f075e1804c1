"""``connmgr cp --all``: copies the same files to many connections at once, or from many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from connmgr.cli.copy.engine import Copy
from connmgr.cli.copy.operands import Shells, expanded
from connmgr.cli.copy.paths import STREAM, CopyOperand, is_remote
from connmgr.cli.copy.plan import CopyOptions, CopyReport, leads_out
from connmgr.cli.exits import Failure
from connmgr.cli.fan_out import OK, Gathered, sum_up, together, with_remedies
from connmgr.cli.output import print_json
from connmgr.cli.selection import Chosen
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import qualified, telling
from connmgr.printable import visible

Ends = Callable[[Client, Shells], tuple[list[CopyOperand], CopyOperand]]
"""Returns the sources and the target of one connection."""


class CopyOutcome(NamedTuple):
    """The result on one connection: what was copied, and the error that ended it, if one did."""

    connection: str
    report: CopyReport
    seconds: float
    failure: ClientError | Failure | OSError | None = None

    @property
    def verdict(self) -> str:
        if isinstance(self.failure, ClientError):
            return self.failure.code
        return "failed" if self.failure is not None or self.report.failures else OK

    @property
    def message(self) -> str:
        """Why it failed, ``""`` if it did not."""
        if isinstance(self.failure, OSError):
            return f"{self.failure.filename}: {self.failure.strerror}"
        return "" if self.failure is None else self.failure.message

    def as_object(self, name: Name) -> dict[str, Any]:
        """Return it for JSON, with the members that ``--failed`` reads."""
        head = {"connection": name.id, "name": qualified(name), "seconds": round(self.seconds, 3)}
        if self.failure is None:
            return {**head, **self.report.as_object()}
        return {**head, "error": {"code": self.verdict, "message": self.message}}


def to_all(
    client: Client,
    chosen: Chosen,
    sources: Sequence[str],
    target: str,
    options: CopyOptions,
    jobs: int,
    *,
    as_json: bool,
    brief: bool,
) -> None:
    """Copy local files to all connections, or files of all connections to here, ``jobs`` at a time.

    Results are printed as those of `connmgr exec --all`.
    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    labels = telling(chosen.names)
    ends = _ends(labels, sources, target)
    began = time.monotonic()
    outcomes = with_remedies(client, labels, options.sudo, lambda ids: _outcomes(client, ids, ends, options, jobs))
    if as_json or brief:
        verdicts = list(_in_lines(outcomes, chosen, labels, as_json=as_json))
    else:
        verdicts = together(
            ((outcome.connection, outcome.verdict, partial(_gather, outcome)) for outcome in outcomes),
            labels,
        )
    sum_up(verdicts, chosen.of, time.monotonic() - began)


def _outcomes(
    client: Client, ids: Sequence[str], ends: Callable[[str], Ends], options: CopyOptions, jobs: int
) -> Iterator[CopyOutcome]:
    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(_one, client.clone(), id, ends(id), options) for id in ids]
        for future in as_completed(begun):
            yield future.result()


def _in_lines(
    outcomes: Iterable[CopyOutcome], chosen: Chosen, labels: dict[str, str], *, as_json: bool
) -> Iterator[str]:
    """Print a line for each outcome as it comes, and yield its verdict."""
    names = {one.id: one for one in chosen.names}
    width = max((len(visible(name)) for name in labels.values()), default=0)
    for done in outcomes:
        if as_json:
            print_json(done.as_object(names[done.connection]), indent=None)
        else:
            name = visible(labels[done.connection]).ljust(width)
            click.echo(f"{name}  {done.verdict:<7}  {done.seconds:6.2f} s  {visible(_said(done))}".rstrip())
        yield done.verdict


def _said(done: CopyOutcome) -> str:
    if done.failure is not None:
        return done.message
    failures = done.report.failures
    return f"{done.report.summary()}; {failures[0]}" if failures else done.report.summary()


def _gather(done: CopyOutcome, gathered: Gathered, name: str) -> None:
    if done.failure is not None:
        gathered.add(name, done.verdict, message=done.message)
        return
    # Without the time, which would be another on each.
    lines = [done.report.summary(timed=False), ""]
    failures = "".join(f"{line}\n" for line in done.report.failures)
    gathered.add(name, done.verdict, "\n".join(lines).encode(), failures.encode(errors="surrogateescape"))


def _ends(labels: dict[str, str], sources: Sequence[str], target: str) -> Callable[[str], Ends]:
    """Return a function from a connection's uuid to the ends of its copy.

    :raises click.UsageError: the operands are neither files for all connections nor files of all.
    """
    here = [not is_remote(text) for text in (*sources, target)]
    if target.startswith(":") and all(here[:-1]) and STREAM not in sources:
        return lambda id: lambda _, shells: ([*sources], shells.remote(id, labels[id], target[1:]))
    if not all(text.startswith(":") for text in sources) or not here[-1] or target == STREAM:
        raise click.UsageError(
            "With --all, files of this machine go to :path, the same path on each connection, or :path of each "
            "connection goes into a directory of this machine."
        )
    directories = _directories(labels, Path(target).expanduser())

    def fetched(id: str) -> Ends:
        def ends(client: Client, shells: Shells) -> tuple[list[CopyOperand], CopyOperand]:
            places = [shells.remote(id, labels[id], text[1:]) for text in sources]
            starts = [one for place in places for one in expanded(client, place)]
            directories[id].mkdir(parents=True, exist_ok=True)
            return starts, str(directories[id])

        return ends

    return fetched


def _directories(labels: dict[str, str], target: Path) -> dict[str, Path]:
    """Return for each connection the directory of its name in ``target``.

    :raises Failure: a name cannot be that of a directory, or two directories would lie in one another.
    """
    names = set(labels.values())
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
    return {id: target / name for id, name in labels.items()}


def _one(client: Client, id: str, ends: Ends, options: CopyOptions) -> CopyOutcome:
    copy, began = Copy(client, options, None), time.monotonic()
    end: CopyOperand | None = None
    failed: ClientError | Failure | OSError | None = None
    try:
        with client, Shells(client, options) as shells:
            sources, end = ends(client, shells)
            copy.run(sources, end)
    except (ClientError, Failure, OSError) as error:
        failed = error
    if isinstance(end, str):
        # Nothing was copied: the new directory is still empty.
        with suppress(OSError):
            Path(end).rmdir()
    return CopyOutcome(id, copy.report, time.monotonic() - began, failed)
