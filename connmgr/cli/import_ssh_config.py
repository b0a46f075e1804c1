"""``connmgr import-ssh-config``: the hosts of an SSH configuration as connections."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.ls import described
from connmgr.cli.names import find_category
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.client import Client
from connmgr.errors import ConnmgrError

if TYPE_CHECKING:
    from connmgr_ssh.config import Destination, Hop
    from connmgr_ssh.config_file import ConfigFiles

USUAL = Path("~/.ssh/config")

NEW, ADDED, PRESENT, DIFFERENT, LEFT_OUT = "new", "added", "there already", "name taken", "left out"


@dataclass
class Host:
    """A host of the file as a connection, reached through the host named ``via``.

    ``outcome`` says what is done with it; ``note`` where it leads, or why it is left out.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    via: str | None = None
    note: str = ""
    outcome: str = NEW
    id: str | None = None


@click.command(name="import-ssh-config")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--apply", is_flag=True, help="Add them. Default: change nothing.")
@click.option("--category", metavar="PATH", help="Where to put them.  [default: default]")
@json_option
def import_ssh_config(file: Path | None, category: str | None, *, apply: bool, as_json: bool) -> None:
    """Show which hosts of an SSH configuration would become connections. With --apply, add them.

    Hosts of ~/.ssh/config are added by their alias: the daemon reads that file at each connection, and later changes of
    it count. Hosts of another FILE are added with its HostName, Port, User, first IdentityFile, and ProxyJump as a
    connection to go through. Hosts with a ProxyCommand are left out. Hosts that are stored already are not added again.
    A connection of another kind that has the name stays as it is.
    """
    client = connect()
    where = None if category is None else find_category(client, category)
    hosts = list(_read(file))
    known = _Known(client)
    for host in hosts:
        known.judge(host)
        if apply and host.outcome == NEW:
            host.id, host.outcome = client.connection.add(host.name, host.data, category=where), ADDED
    if as_json:
        shown = [{"name": h.name, "outcome": h.outcome, "connection": h.id, "note": h.note} for h in hosts]
        print_json(shown)
    elif hosts:
        print_table([(host.outcome, host.name, host.note) for host in hosts])
    if not as_json and any(host.outcome == NEW for host in hosts):
        click.echo("Nothing was changed; --apply adds those that are new.", err=True)


class _Known:
    """The SSH connections in the vault, for comparison."""

    def __init__(self, client: Client) -> None:
        kind = next(one for one in client.connection.types() if one.name == "ssh")
        properties = kind.schema["properties"].items()
        self._defaults = {name: one["default"] for name, one in properties if one.get("default") is not None}
        infos = described(client, "ssh")
        self._names = {tuple(info["name"]) for info in infos}
        # Of equal connections the first listed wins.
        self._stored = {self._whole(info["rawData"]): info["connection"] for info in reversed(infos)}
        self._judged: dict[str, Host] = {}

    def judge(self, host: Host) -> None:
        """Decide what is done with ``host``; its gateway must be judged before."""
        self._judged[host.name] = host
        if host.outcome == LEFT_OUT or not self._gateway_is_there(host):
            return
        # If its gateway is not stored, neither is it.
        may_be_stored = host.via is None or "gateway" in host.data
        same = self._stored.get(self._whole(host.data)) if may_be_stored else None
        if same is not None:
            host.outcome, host.id = PRESENT, same
        elif (host.name.lower(),) in self._names:
            host.outcome, host.note = DIFFERENT, "another SSH connection has this name: change or remove it first"

    def _gateway_is_there(self, host: Host) -> bool:
        if host.via is None:
            return True
        gateway = self._judged.get(host.via)
        if gateway is None or gateway.outcome in (LEFT_OUT, DIFFERENT):
            reason = "through itself" if gateway is None else f"through {gateway.name}, which is not added"
            host.outcome, host.note = LEFT_OUT, f"goes {reason}"
            return False
        if gateway.id is not None:
            host.data["gateway"] = gateway.id
        return True

    def _whole(self, data: Mapping[str, Any]) -> str:
        """Return ``data`` with defaults filled in as text; equal data give equal text."""
        given = {name: value for name, value in data.items() if value is not None}
        return json.dumps({**self._defaults, **given}, sort_keys=True)


def _read(file: Path | None) -> Iterator[Host]:
    """Yield the hosts of ``file``, each after its gateways."""
    from connmgr_ssh.config_file import ConfigFiles

    path = file or USUAL.expanduser()
    usual = path.resolve() == USUAL.expanduser().resolve()
    files = ConfigFiles()
    named = files.aliases(path)
    hosts = _Hosts(None if usual else path, files, set(named))
    for alias in named:
        try:
            yield from hosts.usual(alias) if usual else hosts.explicit(alias)
        except ConnmgrError as error:
            yield hosts.left_out(alias, error.message)


class _Hosts:
    """The hosts of ``file``, or of the usual files if None; ``named`` are the hosts that it names."""

    def __init__(self, file: Path | None, files: ConfigFiles, named: set[str]) -> None:
        self._file = file
        self._files = files
        self._named = named
        self._seen: dict[str, Host] = {}

    def left_out(self, name: str, note: str) -> Host:
        self._seen[name] = host = Host(name, note=note, outcome=LEFT_OUT)
        return host

    def usual(self, name: str) -> Iterator[Host]:
        """Yield the host ``name``; the daemon will resolve the alias in the usual files."""
        yield Host(name, {"type": "ssh", "host": name}, note=_note(self._resolve(name)))

    def explicit(self, name: str, destination: Destination | None = None) -> Iterator[Host]:
        """Yield the hosts of the ProxyJump of ``name`` that were not yielded yet, then ``name``."""
        destination = destination or self._resolve(name)
        if name in self._seen:
            return
        # Marked before its gateways are followed, so that a cycle ends.
        self._seen[name] = host = Host(name, _data(destination), note=_note(destination))
        for hop in destination.jumps:
            jump = _name(hop)
            yield from self._through(hop, jump, host.via)
            host.via = jump
        yield host

    def _through(self, hop: Hop, name: str, via: str | None) -> Iterator[Host]:
        destination = self._resolve(hop.host, hop.port, hop.user)
        if name in self._named:
            yield from self.explicit(name, destination)
        elif name not in self._seen:
            self._seen[name] = Host(name, _data(destination), via, _note(destination))
            yield self._seen[name]

    def _resolve(self, host: str, port: int | None = None, user: str | None = None) -> Destination:
        from connmgr_ssh.config import resolve

        return resolve(host, port, user, file=self._file, files=self._files)


def _name(hop: Hop) -> str:
    user = f"{hop.user}@" if hop.user else ""
    return f"{user}{hop.host}:{hop.port}" if hop.port else f"{user}{hop.host}"


def _data(destination: Destination) -> dict[str, Any]:
    from connmgr_ssh.config import local_user

    data: dict[str, Any] = {"type": "ssh", "host": destination.host, "port": destination.port}
    if destination.user != local_user():
        data["user"] = destination.user
    if destination.identity_files:
        data["identity"] = {"file": destination.identity_files[0]}
        if destination.certificate_files:
            data["identity"]["certificate"] = destination.certificate_files[0]
    return data


def _note(destination: Destination) -> str:
    jumps = "".join(f" through {_name(hop)}" for hop in destination.jumps)
    return f"{destination.user}@{destination}{jumps}"
