"""``connmgr trust``: accept the keys of hosts, or forget the known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from connmgr.cli.connect import CHANGED, UNKNOWN, Doorkeeper, connect, remedies
from connmgr.cli.exits import FAILED, Failure
from connmgr.cli.fan_out import in_threads
from connmgr.cli.output import plural
from connmgr.cli.selection import (
    Choice,
    confirm,
    consent,
    jobs_option,
    means_many,
    require_some,
    select_connections,
    selecting,
)
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import telling
from connmgr.printable import visible

HEADING = ("CONNECTION", "HOST", "KEY", "FINGERPRINT")


class HostKey(NamedTuple):
    """An unknown key that a host has shown; ``host`` is its name in known_hosts."""

    host: str
    text: str
    fingerprint: str


@click.command()
@selecting
@click.option(
    "--fingerprint",
    "fingerprints",
    metavar="SHA256:...",
    multiple=True,
    help="Accept only a key with this fingerprint, without asking. Give it once for each unknown host on the way.",
)
@click.option("--forget", is_flag=True, help="Remove the known keys of a reinstalled host.")
@consent
@jobs_option()
def trust(
    selectors: tuple[str, ...],
    choice: Choice,
    *,
    fingerprints: tuple[str, ...],
    forget: bool,
    yes: bool,
    dry_run: bool,
    jobs: int,
) -> None:
    """Accept or forget the keys of hosts.

    The hosts are those that CONNECTION leads to. It opens the connection, shows each unknown key, and asks. Compare the
    fingerprint with the host's administrator. Without a terminal, --fingerprint names the key to accept.

    If a GLOB, several names or options choose the connections, it shows all unknown keys in one table, and asks once;
    the keys of hosts behind an unknown gateway come in a further table, once the gateway is known. --yes accepts the
    unknown keys without asking. A key that differs from the known one is never accepted: it is reported, and the exit
    code is 1.

    With --forget it removes the known keys of the host whose key has changed, otherwise of the host that CONNECTION
    leads to, from the known_hosts files of connmgr and of the daemon's user.
    """
    if forget and fingerprints:
        raise click.UsageError("Give --forget or --fingerprint: forget the old key first, then accept the new one.")
    if yes and fingerprints:
        raise click.UsageError("Give --yes or --fingerprint.")
    require_some(selectors, choice)
    client = connect()
    many = means_many(selectors, choice)
    names = select_connections(client, selectors, choice, usage="shell" if many else None, addresses=True).names
    labels = telling(names)
    if forget:
        question = f"Forget the keys of {plural(len(names), 'connection')}?"
        if confirm([("forget", labels[name.id]) for name in names], question, yes=yes, dry_run=dry_run, asks=many):
            _forget_all(client, names, labels)
    elif many or yes or dry_run:
        client.remedy(None)
        _KeyReview(client, names, fingerprints, jobs).hold(yes=yes, dry_run=dry_run)
    else:
        doorkeeper = Doorkeeper(client, fingerprints)
        client.remedy(remedies(client, doorkeeper))
        client.connection.refresh(names[0].id)
        if not doorkeeper.admitted:
            click.echo("Every host on the way is trusted already; nothing was changed.")


class _KeyReview:
    """Opens many connections, and asks about all their unknown host keys at once."""

    def __init__(self, client: Client, names: Sequence[Name], fingerprints: Sequence[str], jobs: int) -> None:
        self._client = client
        self._names = {name.id: name for name in names}
        self._labels = telling(names)
        self._fingerprints = fingerprints
        self._jobs = jobs
        self._problems: list[str] = []
        self._trusted_before = self._changed = 0
        self._trusted: set[HostKey] = set()

    def hold(self, *, yes: bool, dry_run: bool) -> None:
        """Open all connections, and accept the unknown keys that the person agrees to.

        :raises click.exceptions.Exit: with 1, a key has changed or was not accepted, or a connection cannot be opened.
        """
        # A gateway whose key is unknown hides the hosts behind it: each round gets one host further on every way.
        pending = list(self._names)
        while pending:
            unknown, pending = self._open(pending), []
            for key in [
                candidate
                for candidate in unknown
                if self._fingerprints and candidate.fingerprint not in self._fingerprints
            ]:
                self._tell(unknown.pop(key), f"{key.fingerprint} of {key.host} is not the given fingerprint.")
            # The key was stored, and the host is unknown again: asking once more would never end.
            for key in unknown.keys() & self._trusted:
                self._tell(unknown.pop(key), f"{key.host} is still not known, though its key was accepted.")
            if not unknown:
                break
            rows = [HEADING, *(self._row(key, ids) for key, ids in unknown.items())]
            question = f"Trust {plural(len(unknown), 'key')}? Compare the fingerprints first."
            if not confirm(rows, question, yes=yes, dry_run=dry_run, asks=not self._fingerprints):
                break
            pending = [id for key, ids in unknown.items() for id in self._accept(key, ids)]
        for problem in self._problems:
            click.echo(problem, err=True)
        counts = {"known": self._trusted_before, "changed": self._changed}
        rest = "".join(f", {number} {what}" for what, number in counts.items() if number)
        others = len(self._problems) - self._changed
        rest += f", {others} failed" if others else ""
        click.echo(f"{plural(len(self._trusted), 'key')} trusted; {plural(len(self._names), 'connection')}{rest}")
        if self._problems:
            raise click.exceptions.Exit(FAILED)

    def _open(self, ids: Sequence[str]) -> dict[HostKey, list[str]]:
        """Open connections, and return the unknown keys on the way, each with the connections that met it."""

        def refusal(client: Client, id: str) -> ClientError | None:
            try:
                client.connection.refresh(id)
            except ClientError as error:
                return error
            return None

        unknown: dict[HostKey, list[str]] = {}
        errors = in_threads(self._client, ids, refusal, self._jobs, in_order=True)
        for id, error in zip(ids, errors, strict=True):
            if error is None:
                self._trusted_before += 1
            elif error.code == UNKNOWN and {"host", "hostKey", "fingerprint"} <= error.details.keys():
                key = HostKey(*(str(error.details[name]) for name in ("host", "hostKey", "fingerprint")))
                unknown.setdefault(key, []).append(id)
            else:
                self._tell([id], error.message, changed=error.code == CHANGED)
        return unknown

    def _accept(self, key: HostKey, ids: list[str]) -> list[str]:
        """Trust a key, and return the connections that can now be opened further."""
        try:
            self._client.hostkey.trust(ids[0], key.host, key.text)
        except ClientError as error:
            self._tell(ids, error.message, changed=error.code == CHANGED)
            return []
        self._trusted.add(key)
        click.echo(f"trusted  {visible(key.host)}  {visible(key.fingerprint)}", err=True)
        return ids

    def _row(self, key: HostKey, ids: Sequence[str]) -> tuple[str, ...]:
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        return f"{self._labels[ids[0]]}{more}", key.host, key.text.split()[0], key.fingerprint

    def _tell(self, ids: Sequence[str], message: str, *, changed: bool = False) -> None:
        self._changed += changed * len(ids)
        loud = "THE KEY HAS CHANGED, and was not accepted. " if changed else ""
        self._problems += [f"{visible(self._labels[id])}: {loud}{visible(message, lines=True)}" for id in ids]


def _forget_all(client: Client, names: Sequence[Name], labels: Mapping[str, str]) -> None:
    """Forget the keys of the hosts of connections.

    :raises Failure: keys are still known, or a connection cannot be asked.
    """
    problems: list[str] = []
    for name in names:
        label = f"{visible(labels[name.id])}: " if len(names) > 1 else ""
        try:
            problems += [f"{label}{sentence}" for sentence in _forget(client, name.id, label)]
        except ClientError as error:
            if len(names) == 1:
                raise
            problems.append(f"{label}{visible(error.message, lines=True)}")
    if problems:
        raise Failure("\n".join(problems))


def _forget(client: Client, id: str, label: str) -> Iterator[str]:
    """Forget the keys of a connection's host, and yield a sentence for each that is still known."""
    client.remedy(None)
    # Without a remedy: a question about the new key would come before the old one is forgotten.
    host = None
    try:
        client.connection.refresh(id)
    except ClientError as error:
        if error.code == CHANGED:
            if "host" not in error.details:
                # The key that differs is in no file: it is a connection's hostKey, or revoked. Others are not to blame.
                raise
            host = error.details["host"]
    keys = client.hostkey.forget(id, host)
    for key in keys:
        if key.kept:
            yield f"{visible(key.key)} is still known ({visible(key.place)}): {visible(key.kept)}."
        else:
            click.echo(f"{label}forgotten  {visible(key.key)} ({visible(key.place)})")
    if not keys:
        click.echo(f"{label}No key of the host was stored; nothing was changed.")
