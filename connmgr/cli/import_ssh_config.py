"""``connmgr import-ssh-config``: stores the hosts of an SSH configuration as connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.importing import import_options, run
from connmgr.cli.plan import LEFT_OUT, Entry
from connmgr.cli.stored import To
from connmgr.errors import ConnmgrError

if TYPE_CHECKING:
    from connmgr_ssh.config import ConfigFiles, Destination, JumpHost

USUAL = Path("~/.ssh/config")

_OF_USUAL = frozenset({"type", "host"})
"""The daemon reads ~/.ssh/config itself, so a host of it is stored by its alias alone."""

_IF_SAID = frozenset({"hostKeyChecking", "sendEnv", "setEnv"})
_OF_OTHERS = _OF_USUAL | {"port", "user", "identity.file", "identity.certificate", "gateway"}


@click.command(name="import-ssh-config")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@import_options
def import_ssh_config(file: Path | None, **options: Any) -> None:
    """Show or add the hosts of an SSH configuration.

    It shows which hosts would become connections; with --apply it adds them. Hosts of ~/.ssh/config are added by their
    alias: the daemon reads that file for each connection, so later changes of the file apply. Hosts of another FILE are
    added with its HostName, Port, User, first IdentityFile, StrictHostKeyChecking, SendEnv, SetEnv, and ProxyJump as a
    connection to go through. Hosts with a ProxyCommand are left out. Beside a host stands what is not heeded of it,
    such as LocalForward. Hosts that are stored already are not added again. A connection of another type with the same
    name is not changed. With --update a stored ssh connection gets what the configuration says of its host; its
    password, passphrase and whatever else no configuration says stay. All are stored in one step, or none.
    """
    run(lambda: _read(file), **options)


def _read(file: Path | None) -> Iterator[Entry]:
    """Yield the hosts of ``file``, each after its gateways."""
    from connmgr_ssh.config import ConfigFiles

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
        self._seen: dict[str, Entry] = {}

    def left_out(self, name: str, note: str) -> Entry:
        self._seen[name] = host = Entry(name, note=note, outcome=LEFT_OUT)
        return host

    def usual(self, name: str) -> Iterator[Entry]:
        """Yield the host ``name``; the daemon will resolve the alias in the usual files."""
        yield Entry(name, {"type": "ssh", "host": name}, note=_note(self._resolve(name)), states=_OF_USUAL)

    def explicit(self, name: str, destination: Destination | None = None) -> Iterator[Entry]:
        """Yield the hosts of the ProxyJump of ``name`` that were not yielded yet, then ``name``."""
        destination = destination or self._resolve(name)
        if name in self._seen:
            return
        # Marked before its gateways are followed, so that a cycle ends.
        self._seen[name] = host = _entry(name, destination)
        via: str | None = None
        for hop in destination.jumps:
            jump = _name(hop)
            yield from self._through(hop, jump, via)
            via = jump
        _lead(host, via)
        yield host

    def _through(self, hop: JumpHost, name: str, via: str | None) -> Iterator[Entry]:
        destination = self._resolve(hop.host, hop.port, hop.user)
        if name in self._named:
            yield from self.explicit(name, destination)
        elif name not in self._seen:
            self._seen[name] = host = _entry(name, destination)
            _lead(host, via)
            yield host

    def _resolve(self, host: str, port: int | None = None, user: str | None = None) -> Destination:
        from connmgr_ssh.config import resolve

        return resolve(host, port, user, file=self._file, files=self._files)


def _entry(name: str, destination: Destination) -> Entry:
    data = _data(destination)
    # What the file does not say of these is left as it is stored.
    states = _OF_OTHERS | (_IF_SAID & data.keys())
    return Entry(name, data, note=_note(destination, _lost(destination)), states=states)


def _lead(host: Entry, via: str | None) -> None:
    if via is not None:
        host.data["gateway"] = To(via)


def _name(hop: JumpHost) -> str:
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
    if destination.accept_new:
        data["hostKeyChecking"] = "acceptNew"
    if destination.send_env:
        data["sendEnv"] = list(destination.send_env)
    if destination.set_env:
        data["setEnv"] = list(destination.set_env)
    return data


def _note(destination: Destination, lost: Sequence[str] = ()) -> str:
    jumps = "".join(f" through {_name(hop)}" for hop in destination.jumps)
    told = [f"not heeded: {', '.join(destination.unheeded)}"] if destination.unheeded else []
    if destination.forwards_agent:
        told.append("ForwardAgent is left to forwardAgent=true")
    more = f" ({'; '.join([*lost, *told])})" if lost or told else ""
    return f"{destination.user}@{destination}{jumps}{more}"


def _lost(destination: Destination) -> list[str]:
    """Return what the data of a connection cannot say of ``destination``."""
    lost = []
    if len(destination.identity_files or ()) > 1:
        lost.append("the first IdentityFile alone")
    if destination.host_key_alias:
        lost.append("without HostKeyAlias")
    return lost
