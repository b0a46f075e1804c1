"""``connmgr exec --all``: runs one command on many connections at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.gathered import OK, Gathered, sum_up, together
from connmgr.cli.login import with_remedies
from connmgr.cli.outcome import BUSY_SECONDS, as_object, is_new, printed_until, tell_restarted
from connmgr.cli.output import counted, print_json
from connmgr.cli.selection import Chosen
from connmgr.client import Broadcast, Client, ClientError, Name, RawOutcome
from connmgr.client.names import qualified, telling
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.cli.script import Script

CONNECTIONS_PER_REQUEST = 1000

GIST_CHARACTERS = 100
"""Characters of output shown in a line."""


def run_everywhere(
    client: Client,
    chosen: Chosen,
    options: dict[str, Any],
    jobs: int,
    *,
    script: Script | None = None,
    as_json: bool,
    brief: bool,
) -> None:
    """Run the command of ``options``, or a script, on the chosen connections, ``jobs`` at a time.

    Each outcome is printed as it comes, as JSON or ``brief`` in a line. Otherwise whole outputs are printed at the end,
    equal ones together.
    :raises click.exceptions.Exit: with 1, the command failed on some.
    """
    names = telling(chosen.names)
    start = time.monotonic()
    if script is None:
        work = partial(_outcomes, client, options={**options, "parallel": jobs})
    else:
        from connmgr.cli.script import outcomes as outcomes_of

        work = partial(outcomes_of, client, script, options=options, jobs=jobs)
    outcomes = with_remedies(client, names, options.get("elevate", {}).get("user"), work)
    if as_json or brief:
        verdicts = list(_in_lines(outcomes, chosen, names, as_json=as_json))
    else:
        verdicts = together(((one.connection, _verdict(one), partial(_gather, one)) for one in outcomes), names)
    sum_up(verdicts, chosen.of, time.monotonic() - start)


def _in_lines(outcomes: Iterable[RawOutcome], chosen: Chosen, names: dict[str, str], *, as_json: bool) -> Iterator[str]:
    """Print a line for each outcome as it comes, and yield its verdict."""
    connections = {one.id: one for one in chosen.names}
    told = {id: visible(name) for id, name in names.items()}
    width = max(map(len, told.values()), default=0)
    for outcome in outcomes:
        if as_json:
            print_json(_object(outcome, connections[outcome.connection]), indent=None)
        else:
            click.echo(_line(outcome, told[outcome.connection].ljust(width)))
            if is_new(outcome.result):
                tell_restarted(told[outcome.connection])
        yield _verdict(outcome)


def _gather(outcome: RawOutcome, gathered: Gathered, name: str) -> None:
    if is_new(outcome.result):
        tell_restarted(name)
    error = outcome.result if isinstance(outcome.result, ClientError) else None
    result = printed_until(outcome.result) if isinstance(outcome.result, ClientError) else outcome.result
    messages = [error.message] if error is not None else []
    if result is not None and result.truncated:
        messages.append("output beyond the daemon's max-output is missing")
    stdout, stderr = (b"", b"") if result is None else (result.stdout, result.stderr)
    gathered.add(name, _verdict(outcome), stdout, stderr, " ".join(messages))


def _outcomes(client: Client, ids: list[str], options: dict[str, Any]) -> Iterator[RawOutcome]:
    """Yield the outcome on each connection; if the answer breaks off, the missing ones get its error."""
    rest = iter(ids)
    while some := dict.fromkeys(islice(rest, CONNECTIONS_PER_REQUEST)):
        start = time.monotonic()
        with _begun(client, list(some), options) as outcomes:
            try:
                for outcome in outcomes:
                    del some[outcome.connection]
                    yield outcome
            except ClientError as error:
                yield from (RawOutcome(id, (), time.monotonic() - start, error) for id in some)


def _begun(client: Client, ids: list[str], options: dict[str, Any]) -> Broadcast[RawOutcome]:
    start = time.monotonic()
    while True:
        try:
            return client.shell.broadcast_bytes(connections=ids, **options)
        except ClientError as error:
            if error.code != "busy" or time.monotonic() - start > BUSY_SECONDS:
                raise
            time.sleep(error.retry_after or 1)


def _verdict(outcome: RawOutcome) -> str:
    """Return ``ok``, ``exit 3``, or the code of an error."""
    if isinstance(outcome.result, ClientError):
        return outcome.result.code
    return f"exit {outcome.result.exit_code}" if outcome.result.exit_code else OK


def _line(outcome: RawOutcome, name: str) -> str:
    return f"{name}  {_verdict(outcome):<7}  {outcome.seconds:6.2f} s  {_gist(outcome)}".rstrip()


def _gist(outcome: RawOutcome) -> str:
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


def _object(outcome: RawOutcome, connection: Name) -> dict[str, Any]:
    head = {"connection": connection.id, "name": qualified(connection), "seconds": round(outcome.seconds, 3)}
    return {**head, **as_object(outcome.result)}
