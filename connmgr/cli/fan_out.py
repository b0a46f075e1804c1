"""Work on many connections at once: repeated after a login, its outcomes gathered, printed and summed up."""

from __future__ import annotations

import codecs
import functools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, TypeVar

import click

from connmgr.cli.exits import FAILED
from connmgr.cli.output import counted, json_option, print_json
from connmgr.cli.plain import tell_restarted
from connmgr.cli.progress import counting
from connmgr.cli.remedies import ask_for_all, lacking
from connmgr.cli.selection import Choice, Chosen, agreed, consent, jobs_option, means_many, selecting
from connmgr.cli.sessions import BUSY_SECONDS, ROOT, as_object, is_new, printed_until
from connmgr.client import Broadcast, Client, ClientError, Name, RawOutcome
from connmgr.client.names import qualified, telling
from connmgr.client.sessions import LOGIN_FAILED
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.cli.script import Script


class OnConnection(Protocol):
    """The outcome of work on the connection with this uuid, and why it failed, if it did."""

    @property
    def connection(self) -> str: ...

    @property
    def failure(self) -> ClientError | Exception | None: ...


Outcome = TypeVar("Outcome", bound=OnConnection)


def with_remedies(
    client: Client, names: Mapping[str, str], sudo: str | None, work: Callable[[list[str]], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of ``work`` on the connections ``names``, with what this program lends where a login fails.

    There the work is done again, which is safe, because it has not begun. One password for ``sudo`` is asked for all.
    """
    pending, tried, has_asked = list(names), set[str](), False
    while pending:
        refused: list[tuple[str, ClientError, Outcome]] = []
        lacks: list[Outcome] = []
        for outcome in work(pending):
            id, failure = outcome.connection, outcome.failure
            if lacking(failure) is not None and not has_asked:
                lacks.append(outcome)
            elif _is_refused(failure) and lacking(failure) is None and id not in tried:
                refused.append((id, failure, outcome))
            else:
                yield outcome
        # Only now, since the work may occupy the client's connection, or be done in threads, where nobody can be asked.
        pending = []
        for id, failure, outcome in refused:
            tried.add(id)
            if client.remedies(failure, connection=id):
                pending.append(id)
            else:
                yield outcome
        if not lacks:
            continue
        has_asked = True
        password = ask_for_all([names[lack.connection] for lack in lacks], sudo or ROOT)
        if password is None:
            yield from lacks
            continue
        for lack in lacks:
            client.connection.elevate(lack.connection, sudo or ROOT, password=password)
            pending.append(lack.connection)


def _is_refused(failure: object) -> TypeGuard[ClientError]:
    return isinstance(failure, ClientError) and failure.code == LOGIN_FAILED


class Done(NamedTuple):
    """What was done on a connection, in words, or why it failed."""

    connection: str
    said: str = ""
    failure: ClientError | None = None

    def as_object(self, name: str) -> dict[str, Any]:
        """Return it for JSON."""
        head = {"connection": self.connection, "name": name}
        if self.failure is None:
            return {**head, "done": self.said}
        return {**head, "error": {"code": self.failure.code, "message": self.failure.message}}


class Change(NamedTuple):
    """The words and options of a command that changes several connections, and asks first if they are many."""

    selectors: tuple[str, ...]
    choice: Choice
    yes: bool
    dry_run: bool
    jobs: int
    as_json: bool

    def do(
        self,
        client: Client,
        names: list[Name],
        rows: Sequence[Sequence[str]],
        question: str,
        work: Callable[[Client, str], str],
    ) -> None:
        """Do ``work`` as :func:`each`, unless the ``question`` about ``rows`` is denied, or it is a dry run."""
        many = means_many(self.selectors, self.choice)
        if agreed(rows, question, yes=self.yes, dry_run=self.dry_run, asks=many):
            each(client, names, work, self.jobs, as_json=self.as_json)


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command CONNECTION arguments and the options of :class:`Change`, as its argument ``change``."""

    @functools.wraps(command)
    def with_change(
        selectors: tuple[str, ...],
        choice: Choice,
        *,
        yes: bool,
        dry_run: bool,
        jobs: int,
        as_json: bool,
        **more: Any,
    ) -> None:
        command(Change(selectors, choice, yes, dry_run, jobs, as_json), **more)

    # Help lists the options in the order of the decorators, those of the command itself in the middle.
    own = list(getattr(with_change, "__click_params__", ()))
    with_change.__click_params__ = []  # type: ignore[attr-defined]
    decorated = consent(jobs_option()(json_option(with_change)))
    decorated.__click_params__ += own  # type: ignore[attr-defined]
    return selecting(decorated)


def each(client: Client, names: list[Name], work: Callable[[Client, str], str], jobs: int, *, as_json: bool) -> None:
    """Do ``work`` for each connection, ``jobs`` at a time, and say what it did; an error of one spares the others.

    :raises click.exceptions.Exit: with 1, it failed for one of several.
    """
    from concurrent.futures import ThreadPoolExecutor

    labels = telling(names)
    if len(names) == 1 and not as_json:
        click.echo(f"{visible(labels[names[0].id])}: {work(client, names[0].id)}")
        return

    def outcome(own: Client, id: str) -> Done:
        try:
            with own:
                return Done(id, work(own, id))
        except ClientError as error:
            return Done(id, failure=error)

    def outcomes(ids: list[str]) -> Iterator[Done]:
        with ThreadPoolExecutor(jobs) as pool:
            # Each thread needs a client of its own; clones share the session, so nobody logs in again.
            yield from pool.map(outcome, [client.clone() for _ in ids], ids)

    results = []
    for one in with_remedies(client, labels, None, outcomes):
        results.append(one)
        if not as_json:
            said = one.said if one.failure is None else one.failure.message
            click.echo(f"{visible(labels[one.connection])}: {visible(said)}", err=one.failure is not None)
    if as_json:
        print_json([result.as_object(labels[result.connection]) for result in results])
    if any(result.failure is not None for result in results):
        raise click.exceptions.Exit(FAILED)


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
        verdicts = together(
            ((outcome.connection, _verdict(outcome), partial(_gather, outcome)) for outcome in outcomes), names
        )
    sum_up(verdicts, chosen.of, time.monotonic() - start)


def _in_lines(outcomes: Iterable[RawOutcome], chosen: Chosen, names: dict[str, str], *, as_json: bool) -> Iterator[str]:
    """Print a line for each outcome as it comes, and yield its verdict."""
    connections = {one.id: one for one in chosen.names}
    labels = {id: visible(name) for id, name in names.items()}
    width = max(map(len, labels.values()), default=0)
    for outcome in outcomes:
        if as_json:
            print_json(_object(outcome, connections[outcome.connection]), indent=None)
        else:
            click.echo(_line(outcome, labels[outcome.connection].ljust(width)))
            if is_new(outcome.result):
                tell_restarted(labels[outcome.connection])
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


OK = "ok"

MEMORY_BYTES = 16 << 20
"""Output beyond this goes to a temporary file."""

PIECE_BYTES = 64 << 10
RULE = "-" * 15
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>[0-9]+)(?P<after>[^0-9]*)", re.DOTALL)

_LEAST_FOLDED = 3
"""Two names are shorter to read than a range."""

_DIGITS = 18
"""Longest number in a range; longer digits are not machine numbers."""


class _Group:
    """The names that share an outcome; its output lies in the spool from ``at`` on, stdout first."""

    def __init__(self, verdict: str, message: str, at: int, sizes: tuple[int, int]) -> None:
        self.verdict = verdict
        self.message = message
        self.at = at
        self.sizes = sizes
        self.names: list[str] = []

    @property
    def has_output(self) -> bool:
        return any(self.sizes)


class Gathered:
    """Collects outcomes and prints them. However many outcomes are equal, their output is kept once.

    ``order`` has all names in the order in which they are shown.
    """

    def __init__(self, order: Sequence[str]) -> None:
        # Imported here, because work whose outcomes are lines needs none of it.
        import tempfile

        self._place = {name: place for place, name in enumerate(order)}
        self._groups: dict[bytes, _Group] = {}
        self._spool = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Gathered:
        return self

    def __exit__(self, *raised: object) -> None:
        self._spool.close()

    def add(self, name: str, verdict: str, stdout: bytes = b"", stderr: bytes = b"", message: str = "") -> None:
        """Record the outcome of ``name``: ``ok`` or another verdict, output, and the message of an error."""
        import hashlib

        digest = hashlib.sha256()
        for part in (verdict.encode(), message.encode(errors="surrogatepass"), stdout, stderr):
            digest.update(len(part).to_bytes(8, "big") + part)
        group = self._groups.get(digest.digest())
        if group is None:
            at = self._spool.seek(0, 2)
            self._spool.write(stdout)
            self._spool.write(stderr)
            group = _Group(verdict, message, at, (len(stdout), len(stderr)))
            self._groups[digest.digest()] = group
        group.names.append(name)

    def show(self) -> None:
        """Print all outcomes on stdout: successes first, then failures, then errors without output."""
        for group in self._groups.values():
            group.names.sort(key=self._place.__getitem__)
        for group in sorted(self._groups.values(), key=lambda one: (_rank(one), self._place[one.names[0]])):
            names = folded([visible(name) for name in group.names])
            if group.message and not group.has_output:
                click.echo(f"{names}: {group.verdict}: {visible(group.message, lines=True)}")
                continue
            verdict = "" if group.verdict == OK else f": {group.verdict}"
            message = f": {visible(group.message, lines=True)}" if group.message else ""
            click.echo(f"{RULE}\n{names} ({len(group.names)}){verdict}{message}\n{RULE}")
            self._print(group)
        sys.stdout.flush()

    def _print(self, group: _Group) -> None:
        stdout, stderr = group.sizes
        if stdout:
            _write(self._pieces(group.at, stdout))
        if stderr:
            click.echo(f"{RULE} stderr")
            _write(self._pieces(group.at + stdout, stderr))

    def _pieces(self, at: int, size: int) -> Iterator[bytes]:
        self._spool.seek(at)
        while size > 0 and (piece := self._spool.read(min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


Ended = tuple[str, str, Callable[[Gathered, str], None]]
"""The uuid of a connection that is done, its verdict, and a function that adds its outcome under a name."""


def together(ended: Iterable[Ended], names: Mapping[str, str]) -> list[str]:
    """Print the outcomes of work on the connections ``names`` when all have ended, and return their verdicts."""
    left = dict(names)
    verdicts = list[str]()
    with Gathered(list(names.values())) as gathered:
        try:
            with counting(list(left.values())) as tell:
                for id, verdict, gather in ended:
                    name = left.pop(id)
                    verdicts.append(verdict)
                    gather(gathered, name)
                    tell(list(left.values()), sum(one != OK for one in verdicts))
        except KeyboardInterrupt:
            # What has ended has ended: its output is all that is left of it.
            for name in left.values():
                gathered.add(name, "interrupted", message="It had not ended when Ctrl-C was pressed.")
            raise
        finally:
            gathered.show()
    return verdicts


def sum_up(verdicts: Sequence[str], of: int, seconds: float, noun: str = "connection") -> None:
    """Print on stderr how work on ``of`` connections, or what else ``noun`` says, has ended.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    counts = Counter(verdicts)
    failed = len(verdicts) - counts.pop(OK, 0)
    said = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    ran = counted(of, noun) if len(verdicts) == of else f"{len(verdicts)} of {counted(of, noun)}"
    click.echo(f"{ran} in {seconds:.1f} s: {len(verdicts) - failed} ok{said}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _rank(group: _Group) -> int:
    if group.verdict == OK:
        return 0
    return 2 if group.message and not group.has_output else 1


def _write(pieces: Iterable[bytes]) -> None:
    """Write output to stdout, ended by a newline: byte by byte, or on a terminal with its control characters visible"""
    sys.stdout.flush()
    last = b""
    if not sys.stdout.isatty():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            last = piece
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = ""
        for piece in pieces:
            text = held + decoder.decode(piece)
            # A carriage return is harmless only before a newline, which may be in the next piece.
            held = "\r" if text.endswith("\r") else ""
            sys.stdout.write(visible(text.removesuffix("\r") if held else text, lines=True))
            last = piece
        sys.stdout.write(visible(held + decoder.decode(b"", final=True), lines=True))
        sys.stdout.flush()
    if not last.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def folded(names: Sequence[str]) -> str:
    """Return names as one text; three or more that differ in their last number become ``web[1-3,7]``."""
    parted = [(name, _NUMBERED.fullmatch(name)) for name in names]
    buckets: dict[tuple[str, str, int], list[str]] = {}
    order: dict[tuple[str, str, int] | str, None] = {}
    padded = {
        (parts["before"], parts["after"])
        for _, parts in parted
        if parts and parts["number"].startswith("0") and len(parts["number"]) > 1
    }
    for name, parts in parted:
        if parts is None or len(parts["number"]) > _DIGITS:
            order.setdefault(name)
            continue
        around = parts["before"], parts["after"]
        key = (*around, len(parts["number"]) if around in padded else 0)
        buckets.setdefault(key, []).append(parts["number"])
        order.setdefault(key)
    return ", ".join(one if isinstance(one, str) else _range(*one, buckets[one]) for one in order)


def _range(before: str, after: str, width: int, numbers: list[str]) -> str:
    if len(numbers) < _LEAST_FOLDED:
        return ", ".join(f"{before}{number}{after}" for number in numbers)
    runs = []
    ordered = sorted(map(int, numbers))
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [f"{number:0{width}}" for _, number in run]
        runs.append(members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return f"{before}[{','.join(runs)}]{after}"
