"""``connmgr exec --all``: one command on many connections at once."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import click

from connmgr.cli.exits import FAILED, NOT_FOUND, Failure
from connmgr.cli.ls import described
from connmgr.cli.names import qualified
from connmgr.cli.outcome import as_object, in_shell
from connmgr.cli.output import counted, print_json, visible
from connmgr.client import Client, ClientError, Connection, RawResult

BUSY_SECONDS = 60.0
"""Seconds to retry while the daemon has no free slot."""

GIST_CHARACTERS = 100
"""Characters of output shown in a line."""


@dataclass(frozen=True)
class Outcome:
    """The result of the command on one connection."""

    connection: Connection
    seconds: float
    result: RawResult | ClientError

    @property
    def verdict(self) -> str:
        """``ok``, ``exit 3``, or the code of an error."""
        if isinstance(self.result, ClientError):
            return self.result.code
        return f"exit {self.result.exit_code}" if self.result.exit_code else "ok"


def run_everywhere(
    client: Client, pattern: str, command: str, options: dict[str, Any], jobs: int, *, as_json: bool
) -> None:
    """Run a command on every connection with shells that ``pattern`` matches, ``jobs`` at a time.

    :raises Failure: ``pattern`` matches none.
    :raises click.exceptions.Exit: with 1, the command failed on some.
    """
    connections = [one for one in map(Connection.read, described(client, pattern)) if one.usage == "shell"]
    if not connections:
        raise Failure(f"No connection matches {pattern!r}.", NOT_FOUND)
    waiting: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    for one in sorted(connections, key=lambda one: one.name):
        waiting.put(one)
    start = time.monotonic()
    for _ in range(min(jobs, len(connections))):
        # The threads end with the queue. On an interrupt they die with the process, and the daemon kills their
        # commands.
        arguments = (client.clone(), waiting, finished, command, options)
        threading.Thread(target=_work, args=arguments, daemon=True).start()
    width = max(len(visible(one.path)) for one in connections)
    outcomes = []
    for _ in connections:
        outcomes.append(finished.get())
        if as_json:
            print_json(_object(outcomes[-1]), indent=None)
        else:
            click.echo(_line(outcomes[-1], width))
    _sum_up(outcomes, time.monotonic() - start)


def _work(
    client: Client,
    waiting: queue.SimpleQueue[Connection],
    finished: queue.SimpleQueue[Outcome],
    command: str,
    options: dict[str, Any],
) -> None:
    with client:
        while True:
            try:
                one = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                finished.put(_run(client, one, command, options))
            except Exception as error:  # noqa: BLE001 - whoever waits for this connection must hear of it
                finished.put(Outcome(one, 0.0, ClientError(repr(error), "client_failed", 0)))


def _run(client: Client, one: Connection, command: str, options: dict[str, Any]) -> Outcome:
    start = time.monotonic()
    while True:
        try:
            result = in_shell(
                client, one.id, options["session"], lambda: client.shell.exec_bytes(one.id, command, **options)
            )
        except ClientError as error:
            if error.code == "busy" and time.monotonic() - start < BUSY_SECONDS:
                time.sleep(error.retry_after or 1)
                continue
            return Outcome(one, time.monotonic() - start, error)
        return Outcome(one, time.monotonic() - start, result)


def _line(outcome: Outcome, width: int) -> str:
    name = visible(outcome.connection.path).ljust(width)
    return f"{name}  {outcome.verdict:<7}  {outcome.seconds:6.2f} s  {_gist(outcome)}".rstrip()


def _gist(outcome: Outcome) -> str:
    """Return the first line of output or error, and a count of the others."""
    result = outcome.result
    if isinstance(result, ClientError):
        lines = result.message.splitlines()
    else:
        output = result.stderr if result.exit_code and result.stderr else result.stdout or result.stderr
        lines = output.decode(errors="replace").splitlines()
    if not lines:
        return ""
    first = visible(lines[0])
    shown = first if len(first) <= GIST_CHARACTERS else f"{first[: GIST_CHARACTERS - 1]}…"
    return shown if len(lines) == 1 else f"{shown}  (+{counted(len(lines) - 1, 'line')})"


def _object(outcome: Outcome) -> dict[str, Any]:
    head = {
        "connection": outcome.connection.id,
        "name": qualified(outcome.connection),
        "seconds": round(outcome.seconds, 3),
    }
    return {**head, **as_object(outcome.result)}


def _sum_up(outcomes: list[Outcome], seconds: float) -> None:
    counts = Counter(outcome.verdict for outcome in outcomes)
    failed = len(outcomes) - counts.pop("ok", 0)
    said = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    click.echo(
        f"{counted(len(outcomes), 'connection')} in {seconds:.1f} s: {len(outcomes) - failed} ok{said}", err=True
    )
    if failed:
        raise click.exceptions.Exit(FAILED)
