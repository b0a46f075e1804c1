"""Work on many connections at once: in threads, repeated after a login, its outcomes printed and summed up."""

from __future__ import annotations

import codecs
import functools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

import click

from connmgr.cli.connect import ask_for_all, lacking
from connmgr.cli.exits import FAILED
from connmgr.cli.output import json_option, plural, print_json
from connmgr.cli.progress import counting
from connmgr.cli.selection import Choice, Selection, confirm, consent, jobs_option, means_many, selecting
from connmgr.cli.sessions import OK, ROOT
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import full_path, telling
from connmgr.client.sessions import LOGIN_FAILED
from connmgr.printable import visible


class OnConnection(Protocol):
    """The outcome of work on the connection with this uuid, and why it failed, if it did."""

    @property
    def connection(self) -> str: ...

    @property
    def failure(self) -> ClientError | Exception | None: ...


Outcome = TypeVar("Outcome", bound=OnConnection)
Result = TypeVar("Result")


def in_threads(
    client: Client, ids: Sequence[str], work: Callable[[Client, str], Result], jobs: int, *, in_order: bool = False
) -> Iterator[Result]:
    """Yield the results of ``work`` on each of ``ids``, ``jobs`` at a time, as they come or ``in_order``.

    What has not begun is given up if the iteration ends early, such as by Ctrl-C.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def run(own: Client, id: str) -> Result:
        with own:
            return work(own, id)

    with ThreadPoolExecutor(min(jobs, len(ids)) or 1) as pool:
        # A client is for one thread. Clones share the session, so that nobody logs in again.
        futures = [pool.submit(run, client.clone(), id) for id in ids]
        try:
            for future in futures if in_order else as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def with_remedies(
    client: Client, names: Mapping[str, str], sudo: str | None, work: Callable[[list[str]], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of ``work`` on the connections ``names``; where a login fails, help with it and work again.

    Working again is safe there, because a refused login comes before anything has begun. If sudo wants a password, it
    is asked for once, for all connections.
    """
    # Each connection gets one more attempt after a login, and all together one after a password: a person who types it
    # wrong sees the refusal of each, and is not asked a hundred times.
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
    text: str = ""
    failure: ClientError | None = None

    def as_object(self, name: str) -> dict[str, Any]:
        """Return it for JSON."""
        head = {"connection": self.connection, "name": name}
        if self.failure is None:
            return {**head, "done": self.text}
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
        if confirm(rows, question, yes=self.yes, dry_run=self.dry_run, asks=many):
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
    labels = telling(names)
    if len(names) == 1 and not as_json:
        click.echo(f"{visible(labels[names[0].id])}: {work(client, names[0].id)}")
        return

    def outcome(own: Client, id: str) -> Done:
        try:
            return Done(id, work(own, id))
        except ClientError as error:
            return Done(id, failure=error)

    def outcomes(ids: list[str]) -> Iterator[Done]:
        return in_threads(client, ids, outcome, jobs, in_order=True)

    results = []
    for result in with_remedies(client, labels, None, outcomes):
        results.append(result)
        if not as_json:
            text = result.text if result.failure is None else result.failure.message
            click.echo(f"{visible(labels[result.connection])}: {visible(text)}", err=result.failure is not None)
    if as_json:
        print_json([result.as_object(labels[result.connection]) for result in results])
    if any(result.failure is not None for result in results):
        raise click.exceptions.Exit(FAILED)


class ShownOutcome(OnConnection, Protocol):
    """The outcome of a command's work on one of many connections, in the three shapes in which it is shown."""

    @property
    def verdict(self) -> str:
        """``ok``, ``exit 3``, or the code of an error."""

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON, without its connection, with the members that ``--failed`` reads."""

    def show(self, name: str, width: int) -> None:
        """Print it as a line that begins with ``name``, in a column of this ``width``."""

    def gather(self, gathered: Gathered, name: str) -> None:
        """Add output and messages to ``gathered``, which is printed when all have ended."""


def report(
    client: Client,
    selection: Selection,
    sudo: str | None,
    work: Callable[[list[str]], Iterable[ShownOutcome]],
    *,
    as_json: bool,
    brief: bool,
) -> None:
    """Print the outcomes of ``work`` on the chosen connections, and sum them up.

    Each is printed as it comes, as JSON or ``brief`` in a line. Otherwise whole outputs are printed at the end, equal
    ones together.
    :raises click.exceptions.Exit: with 1, the work failed on some.
    """
    names = telling(selection.names)
    began = time.monotonic()
    outcomes = with_remedies(client, names, sudo, work)
    if as_json or brief:
        verdicts = list(_in_lines(outcomes, selection.names, names, as_json=as_json))
    else:
        verdicts = _together(outcomes, names)
    sum_up(verdicts, selection.of, time.monotonic() - began)


def _in_lines(
    outcomes: Iterable[ShownOutcome], connections: Iterable[Name], names: Mapping[str, str], *, as_json: bool
) -> Iterator[str]:
    """Print each outcome as it comes, and yield its verdict."""
    paths = {connection.id: full_path(connection) for connection in connections}
    labels = {id: visible(name) for id, name in names.items()}
    width = max(map(len, labels.values()), default=0)
    for outcome in outcomes:
        id = outcome.connection
        if as_json:
            print_json({"connection": id, "name": paths[id], **outcome.as_object()}, indent=None)
        else:
            outcome.show(labels[id], width)
        yield outcome.verdict


def _together(outcomes: Iterable[ShownOutcome], names: Mapping[str, str]) -> list[str]:
    """Print the outcomes of work on the connections ``names`` when all have ended, and return their verdicts."""
    left = dict(names)
    verdicts = list[str]()
    with Gathered(list(names.values())) as gathered:
        try:
            with counting(list(left.values())) as tell:
                for outcome in outcomes:
                    verdicts.append(outcome.verdict)
                    outcome.gather(gathered, left.pop(outcome.connection))
                    tell(list(left.values()), sum(verdict != OK for verdict in verdicts))
        except KeyboardInterrupt:
            # What has ended has ended: its output is all that is left of it.
            for name in left.values():
                gathered.add(name, "interrupted", message="It had not ended when Ctrl-C was pressed.")
            raise
        finally:
            gathered.show()
    return verdicts


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
        # Outputs lie in one file, and equal ones once: a thousand machines may print a megabyte each.
        self._spool = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Gathered:
        return self

    def __exit__(self, *raised: object) -> None:
        self._spool.close()

    def add(self, name: str, verdict: str, stdout: bytes = b"", stderr: bytes = b"", message: str = "") -> None:
        """Record the outcome of ``name``: ``ok`` or another verdict, output, and the message of an error."""
        import hashlib

        # The length before each part keeps "ab" + "c" from being equal to "a" + "bc".
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
        for group in sorted(self._groups.values(), key=lambda group: (_rank(group), self._place[group.names[0]])):
            names = fold_names([visible(name) for name in group.names])
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


def sum_up(verdicts: Sequence[str], of: int, seconds: float, noun: str = "connection") -> None:
    """Print on stderr how work on ``of`` connections, or what else ``noun`` says, has ended.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    counts = Counter(verdicts)
    failed = len(verdicts) - counts.pop(OK, 0)
    # Not in the order in which they came, which differs from run to run.
    in_order = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    others = "".join(f", {count} {verdict}" for verdict, count in in_order)
    ran = plural(of, noun) if len(verdicts) == of else f"{len(verdicts)} of {plural(of, noun)}"
    click.echo(f"{ran} in {seconds:.1f} s: {len(verdicts) - failed} ok{others}", err=True)
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
        pending = ""
        for piece in pieces:
            text = pending + decoder.decode(piece)
            # A carriage return is harmless only before a newline, which may be in the next piece.
            pending = "\r" if text.endswith("\r") else ""
            sys.stdout.write(visible(text.removesuffix("\r") if pending else text, lines=True))
            last = piece
        sys.stdout.write(visible(pending + decoder.decode(b"", final=True), lines=True))
        sys.stdout.flush()
    if not last.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def fold_names(names: Sequence[str]) -> str:
    """Return names as one text; three or more that differ in their last number become ``web[1-3,7]``."""
    # web1, web2 and web10 differ in their last number, and so do rack1-node1 and rack1-node2. Padded numbers (01) and
    # plain ones (1) must not fall into one range, because web[1-2] would then mean other names.
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
    return ", ".join(key if isinstance(key, str) else _range(*key, buckets[key]) for key in order)


def _range(before: str, after: str, width: int, numbers: list[str]) -> str:
    if len(numbers) < _LEAST_FOLDED:
        return ", ".join(f"{before}{number}{after}" for number in numbers)
    runs = []
    ordered = sorted(map(int, numbers))
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [f"{number:0{width}}" for _, number in run]
        runs.append(members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return f"{before}[{','.join(runs)}]{after}"
