"""``connmgr tunnel`` and ``ssh-config``: ports that lead through connections, and connections as hosts of ``ssh``."""

from __future__ import annotations

import os
import re
import select
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from connmgr.cli.connect import connect, named_credential, program
from connmgr.cli.exits import FAILED, UNREACHABLE, Failure, failure
from connmgr.cli.options import Group
from connmgr.cli.output import amount, json_option, plural, print_json, print_table, write_private
from connmgr.cli.selection import ConnectionName, reach, require_terminal
from connmgr.client import LOCAL_MACHINE, Client, ClientError, Name, Unreachable
from connmgr.client.credentials import is_token
from connmgr.client.names import LOCAL, filters_of, find, is_pattern
from connmgr.paths import API_KEY_FILE_VARIABLE, TOKEN_FILE_VARIABLE
from connmgr.printable import visible

TUNNEL = "tunnel"
HEADING = ("NAME", "STATE", "ADDRESS", "STREAMS", "IN", "OUT", "LAST ERROR")
_UNLESS_FORWARDED = "If ssh says above that a forwarding request failed, only that is the reason."
_OPENSSH = "OpenSSH_"
_VERSION_SECONDS = 1.0
"""Longest time for an SSH client to say who it is; each says so at once."""

_MAX_VERSION_BYTES = 255
_SERVICE_NOT_AVAILABLE = 7
_PLACE = re.compile(r"(?:\[([^\]]+)\]:|([^:]+):)?(\d{1,5})", re.ASCII)


class TunnelGroup(Group):
    """Takes the name of a connection as short for ``open NAME``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["open", *args]
        return super().resolve_command(ctx, args)


_tunnel_argument = click.argument("name", metavar="CONNECTION", type=ConnectionName())


@click.group(cls=TunnelGroup)
def tunnel() -> None:
    """Keep ports open that lead through connections.

    `connmgr tunnel CONNECTION PORT` brings a port of a machine to a port here. The daemon keeps it open, also when
    the link breaks, until `connmgr tunnel close`. `connmgr add sshDynamicTunnel` and others store other kinds.
    """


@tunnel.command(name="open")
@_tunnel_argument
@click.argument("place", metavar="[[HOST:]PORT]", required=False)
@click.option(
    "--local-port", metavar="PORT", type=click.IntRange(1, 65535), help="The port here; a free one otherwise."
)
@click.option(
    "--keep", is_flag=True, help="Store a new tunnel even if it cannot be opened now; the daemon goes on trying."
)
def open_(name: str, place: str | None, local_port: int | None, *, keep: bool) -> None:
    """Open a stored tunnel, or one to a PORT of a machine.

    With PORT the CONNECTION is a machine, and the service is stored below it under `services`, unless one to the same
    HOST and PORT is stored already: then that one is opened. HOST is another host that the machine can reach, by the
    name that the machine uses. Connect to the printed address. A new tunnel that cannot be opened is not stored unless
    --keep is given.
    """
    client = connect()
    if place is None:
        if local_port is not None:
            raise click.UsageError("--local-port needs a PORT, for a new tunnel; `connmgr edit` changes a stored one.")
        id, is_new = _tunnel(client, name), False
    else:
        id, is_new = _service(client, reach(client, name), place, local_port)
    failure = None
    try:
        client.connection.toggle(id, True)
        if fault := _status(client, id)["lastError"]:
            failure = ClientError(fault["message"], fault["code"], 0)
    except ClientError as error:
        if keep or not is_new:
            raise
        failure = error
    if failure is not None and is_new and not keep:
        client.connection.remove([id])
        advice = "The tunnel was not stored: with --keep it is, and the daemon tries again."
        raise ClientError(f"{failure.message} {advice}", failure.code, failure.status) from failure
    _tell(client, id)


@tunnel.command(name="close")
@_tunnel_argument
def close(name: str) -> None:
    """Close a tunnel; it stays stored."""
    client = connect()
    id = _tunnel(client, name)
    client.connection.toggle(id, False)
    _tell(client, id)


@tunnel.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@json_option
def ls(pattern: str, *, as_json: bool) -> None:
    """List tunnels that GLOB matches, with their states and addresses."""
    client = connect()
    names = {connection.id: connection.path for connection in client.connection.choose(pattern)}
    tunnels = [tunnel for tunnel in client.tunnel.query() if tunnel["connection"] in names]
    if as_json:
        print_json(tunnels)
    elif tunnels:
        print_table([HEADING, *(_row(names[tunnel["connection"]], tunnel) for tunnel in tunnels)])


def _tunnel(client: Client, name: str) -> str:
    """Return the uuid of the tunnel ``name``.

    :raises Failure: the name means another connection, which would be started or stopped.
    """
    id = find(client.connection, name, accepts=lambda candidate: candidate.usage == TUNNEL, noun="tunnel")
    [connection] = client.connection.info([id])
    if connection.usage != TUNNEL:
        raise Failure(
            f"{visible(connection.path)} is a connection of type {connection.type}, not a tunnel. `connmgr tunnel open "
            "NAME PORT` stores a tunnel to a port of a machine; `connmgr container` starts and stops containers."
        )
    return id


def _service(client: Client, machine: str, place: str, local_port: int | None) -> tuple[str, bool]:
    """Return the id of the service ``place`` of a machine, and whether it is new: the same one is not stored twice.

    Two services are the same if they lead to the same host and port; with a ``local_port``, also from the same one.
    """
    read = _PLACE.fullmatch(place)
    if read is None or not 0 < int(read[3]) < 1 << 16:
        raise click.UsageError(f"{place!r} is not of the form [HOST:]PORT.")
    host = read[1] or read[2]
    data: dict[str, Any] = {"type": "customService", "host": machine, "remotePort": int(read[3])}
    data |= {"address": host} if host else {}
    data |= {"localPort": local_port} if local_port else {}
    leads = machine, (host or "localhost").lower(), int(read[3])
    name = place
    for service in client.connection.info(client.connection.query(type="customService")):
        stored = service.data
        if (stored["host"], stored["address"].lower(), stored["remotePort"]) == leads:
            if local_port in (None, stored.get("localPort")):
                return service.id, False
            # Two tunnels of one name could not be closed by it, so that the local port becomes part of the name.
            name = f"{place}-{local_port}"
    return client.connection.ensure(name, data)


def _status(client: Client, id: str) -> dict[str, Any]:
    [status] = client.tunnel.query([id])
    return status


def _tell(client: Client, id: str) -> None:
    status = _status(client, id)
    [info] = client.connection.info([id])
    why = f" ({status['lastError']['message']})" if status["lastError"] and status["state"] != "open" else ""
    click.echo(f"{visible(info.path)}  {status['state']}  {status['address'] or '-'}{visible(why)}")


def _row(name: str, status: dict[str, Any]) -> tuple[str, ...]:
    fault = status["lastError"]
    return (
        name,
        status["state"],
        status["address"] or "-",
        str(status["streams"]),
        amount(status["bytesIn"], binary=True),
        amount(status["bytesOut"], binary=True),
        fault["code"] if fault else "-",
    )


BACKUP = ".before-connmgr"
_NAMING = ("CONNMGR_AUTH_FILE", "CONNMGR_CONFIG", "CONNMGR_HOST", "CONNMGR_PORT")
"""Variables by which a command finds its daemon."""


@click.command(name="ssh-config")
@click.argument("globs", metavar="[CONNECTION|GLOB]...", type=ConnectionName(), nargs=-1)
@click.option(
    "--write",
    is_flag=True,
    help="Keep the hosts in ssh_config beside connmgr's settings, and include that file in ~/.ssh/config.",
)
@click.option("--remove", is_flag=True, help="Undo --write.")
@click.option("--yes", is_flag=True, help="With --write: do not ask before ~/.ssh/config is changed.")
@click.option(
    "--explain",
    metavar="HOST PORT",
    type=(str, int),
    help="Say why ssh finds no socket for HOST and PORT; ssh itself runs this.",
)
def ssh_config(
    globs: tuple[str, ...], *, write: bool, remove: bool, yes: bool, explain: tuple[str, int] | None
) -> None:
    """Make connections hosts of ssh.

    It prints a configuration for OpenSSH's ssh, and for all that calls it. ssh then runs its commands over the daemon's
    link, almost as fast as over a master connection of its own: rsync, scp, sftp, git, editors and agents need no
    option and do not know of connmgr. A host is called by its last name where one connection has that, and by its path
    with + between the names: web1, root, web1+root. Without a GLOB all connections with a shell are hosts.

    With --write the daemon keeps the hosts in a file, as connections come and go, and opens their sockets again when it
    has been restarted. One line at the top of ~/.ssh/config includes that file: it is asked for on a terminal, and a
    copy of the former file is kept. --remove undoes this.

    With --token-file, or another named token, the hosts have that token's rights and end with it. Print them into a
    file for `ssh -F`.

    A user or port on ssh's command line holds: one that is not the connection's is refused, and so is everything while
    no daemon runs. ssh never logs in by itself in place of the daemon.
    """
    if explain is not None:
        _explain(*explain)
    if write and remove:
        raise click.UsageError("Give --write or --remove.")
    if yes and not write:
        raise click.UsageError("--yes needs --write.")
    if remove and globs:
        raise click.UsageError("--remove undoes --write as a whole: leave out the names.")
    client = connect()
    if remove:
        _remove(client)
    elif write:
        _write(client, globs, yes=yes)
    else:
        answer = client.multiplex.config(_program(), *_host_filters(client, globs))
        if globs and not (answer.hosts or answer.unnamed):
            patterns = " or ".join(map(repr, globs))
            raise Failure(f"No connection with a shell matches {patterns}. `connmgr ls` lists them.")
        click.echo(answer.text, nl=False)
        _tell_unnamed(answer.unnamed)


def renew_sockets(client: Client) -> None:
    """Give the owner's open sockets the rights of ``client``'s session, which has unlocked a vault user."""
    own = [socket.connection for socket in client.multiplex.query() if socket.token is None]
    if own:
        client.multiplex.open(own)


_Filters = list[tuple[str, str]]


def _host_filters(client: Client, globs: Sequence[str]) -> tuple[_Filters | None, list[str]]:
    """Return filters for paths and for names, and further connections; without ``globs`` all connections are wanted.

    :raises ClientError: a name that is not a GLOB means no connection, or several.
    """
    if not globs:
        return None, []
    patterns = [filters_of(glob) for glob in globs if is_pattern(glob)]
    filters = [(pattern.get("path", "*"), pattern.get("name", "*")) for pattern in patterns]
    names = [client.connection.find(glob) for glob in globs if not is_pattern(glob)]
    return filters, list(dict.fromkeys(names))


def _program() -> list[str]:
    """Return the words by which ssh calls this program, with what names its daemon and its credential.

    :raises Failure: the credential is in a variable, so that no file of it can be named.
    """
    options = click.get_current_context().find_root().params
    words = program()
    # ssh runs these words later and in another environment: what names daemon and credential goes along.
    if options["url"] is not None:
        words += ["--url", options["url"]]
    variables = {"--token-file": TOKEN_FILE_VARIABLE, "--api-key-file": API_KEY_FILE_VARIABLE}
    for option, variable in variables.items():
        value = options[option[2:].replace("-", "_")]
        if named_credential() is not None and (file := value or os.environ.get(variable)):
            return [*_named_environment(), *words, option, str(Path(file).absolute())]
    if is_token(named_credential()):
        raise Failure("The token is needed again when ssh is run: put it into a file, and give --token-file.")
    return [*_named_environment(), *words]


def _named_environment() -> list[str]:
    variables = [f"{name}={os.environ[name]}" for name in _NAMING if os.environ.get(name)]
    return ["env", *variables] if variables else []


def _tell_unnamed(unnamed: Sequence[Sequence[str]]) -> None:
    if unnamed:
        paths = ", ".join(visible("/".join(path)) for path in unnamed)
        click.echo(
            "Left out, because ssh does not accept the name or the user, or because a token has made or changed the "
            f"connection and nobody has saved it since: {paths}",
            err=True,
        )


class _UserConfig(NamedTuple):
    """A person's ``~/.ssh/config``: the file itself, or its target where it is a link, and its text."""

    file: Path
    text: str
    exists: bool

    @classmethod
    def read(cls) -> _UserConfig:
        """Read the file; a missing one is empty.

        :raises Failure: it cannot be read.
        """
        path = Path.home() / ".ssh" / "config"
        try:
            # Read first: Path.resolve() has an error of its own for links in a circle (Python before 3.13).
            text = path.read_bytes().decode()
            return cls(path.resolve(), text, exists=True)
        except FileNotFoundError:
            return cls(path.resolve(), "", exists=False)
        except OSError as error:
            raise Failure(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeError:
            raise Failure(f"{path} is not in UTF-8, and is left as it is.") from None

    @property
    def copy(self) -> Path:
        """The place of the copy from before the first change."""
        return self.file.with_name(self.file.name + BACKUP)

    def includes(self, line: str) -> bool:
        """Whether ``line`` is in it, before the first host."""
        for other in self.text.splitlines():
            if other == line:
                return True
            if other.split()[:1] and other.split()[0].lower() in ("host", "match"):
                return False
        return False

    @property
    def hosts(self) -> set[str]:
        """The names and patterns of its hosts."""
        lines = re.findall(r"^[ \t]*host(?:[ \t]+|[ \t]*=)(.*)", self.text, re.IGNORECASE | re.MULTILINE)
        return {word.strip('"') for line in lines for word in line.split()}

    def replace(self, text: str) -> None:
        """Replace the content; the permissions stay.

        :raises Failure: it was changed meanwhile.
        """
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        if _UserConfig.read().text != self.text:
            raise Failure(f"{self.file} is being changed by another program: try again.")
        # ssh refuses a configuration that others may write; the mode that a person has chosen stays.
        mode = self.file.stat().st_mode & 0o777 if self.file.exists() else 0o600
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        write_private(draft, text)
        draft.chmod(mode)
        draft.replace(self.file)


def _line(file: str) -> str:
    """Return the line that includes ``file``.

    :raises Failure: ssh could not read its path.
    """
    if set(file) & set('"*?[]{}\n'):
        raise Failure(f"{file} cannot be included: its path has a character that ssh does not take as it is.")
    return f'Include "{file}"'


def _write(client: Client, globs: Sequence[str], *, yes: bool) -> None:
    if is_token(named_credential()):
        raise Failure(
            "--write makes hosts with the owner's rights. With a token, print them, and give the file to ssh -F."
        )
    user = _UserConfig.read()
    filters = _host_filters(client, globs)
    expected = _kept_beside()
    # A person is asked before the daemon writes anything.
    if not yes and (expected is None or not user.includes(_line(expected))):
        require_terminal("Give --yes.")
        question = f"Put a line at the top of {user.file} that includes connmgr's hosts? A copy is kept beside it."
        click.confirm(question, abort=True, err=True)
    answer = client.multiplex.keep(_program(), *filters)
    line = _line(answer.file)
    if not user.includes(line):
        if user.exists and not user.copy.exists():
            write_private(user.copy, user.text)
        user.replace(f"{line}\n{user.text}")
    click.echo(f"{plural(len(answer.hosts), 'host')} for ssh in {answer.file}, included by {user.file}.")
    if hidden := sorted(user.hosts.intersection(name for host in answer.hosts for name in host.names)):
        names = ", ".join(map(visible, hidden))
        click.echo(f"Of {user.file} these hosts are connections of connmgr from now on: {names}", err=True)
    _tell_unnamed(answer.unnamed)
    _tell_other_home()


def _kept_beside() -> str | None:
    """Return the path of the file with hosts that `--write` keeps, if it is beside this user's settings."""
    from connmgr.paths import config_file

    file = config_file(os.environ).with_name("ssh_config")
    return str(file) if file.exists() else None


def _tell_other_home() -> None:
    import pwd

    home = pwd.getpwuid(os.geteuid()).pw_dir
    if Path(home).resolve() != Path.home().resolve():
        click.echo(f"ssh reads {home}/.ssh/config, not that of HOME: give it -F {Path.home()}/.ssh/config.", err=True)


def _remove(client: Client) -> None:
    user = _UserConfig.read()
    path = client.multiplex.forget()
    file = path or _kept_beside()
    lines = user.text.splitlines(keepends=True)
    left = [line for line in lines if file is None or line.rstrip("\r\n") != _line(file)]
    if len(left) < len(lines):
        if left or user.copy.exists():
            user.replace("".join(left))
        else:
            user.file.unlink()
        if user.copy.exists() and user.copy.read_bytes() == "".join(left).encode():
            user.copy.unlink()
        elif user.copy.exists():
            click.echo(f"{user.file} has changed since; its copy from before is {user.copy}.", err=True)
    elif path is None:
        click.echo("No hosts are kept.")
        return
    click.echo("The hosts are removed.")


def _explain(host: str, port: int) -> None:
    """Say why ssh found no socket of ``host``, and exit with a failure; it is the ProxyCommand of an SSH client."""
    asking, code = _version_of_client(), FAILED
    try:
        reason = _reason(connect(offers_start=False), host, port, asking)
    except Unreachable as error:
        reason = error.message
        if not error.sent:
            code = UNREACHABLE
            reason = (
                f"{host} is reached by connmgr's daemon, and none runs: `connmgr serve` starts one, `connmgr service "
                "install` has the system start it."
            )
    except ClientError as error:
        reason = failure(error).message
        if error.code == "scope_denied":
            reason = f"{_UNLESS_FORWARDED} Otherwise: {reason} It is needed to look up what else may be wrong."
    told = f"connmgr: {' '.join(reason.split())}"
    click.echo(told, err=True)
    # Libraries do not show the standard error of a ProxyCommand. With ControlPersist, which is Ansible's default,
    # OpenSSH sends it to /dev/null (ssh_proxy_connect in sshconnect.c).
    if asking and not (asking.startswith(_OPENSSH) and os.fstat(2).st_rdev != Path(os.devnull).stat().st_rdev):
        with suppress(BrokenPipeError):
            os.write(1, b"SSH-2.0-connmgr\r\n" + _disconnection(told))
    raise click.exceptions.Exit(code)


def _version_of_client() -> str:
    """Return how the SSH client at standard input calls itself, or an empty text if none is there."""
    said, deadline = b"", time.monotonic() + _VERSION_SECONDS
    while b"\n" not in said and len(said) < _MAX_VERSION_BYTES and not os.isatty(0):
        if not select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        more = os.read(0, _MAX_VERSION_BYTES)
        if not more:
            break
        said += more
    line = said.partition(b"\n")[0].decode(errors="replace").strip()
    return line.partition("SSH-2.0-")[2]


def _disconnection(message: str) -> bytes:
    """Return the packet by which an SSH server ends a connection, before any encryption (RFC 4253, 6 and 11.1)."""
    text = message.encode()
    payload = struct.pack(f">BII{len(text)}sI", 1, _SERVICE_NOT_AVAILABLE, len(text), text, 0)
    padding = 8 - (5 + len(payload)) % 8
    padding += 8 if padding < 4 else 0
    return struct.pack(">IB", 1 + len(payload) + padding, padding) + payload + bytes(padding)


def _reason(client: Client, host: str, port: int, asking: str) -> str:
    candidates = [name for name in client.connection.names() if host in _hosts(name)]
    ids = [candidate.id for candidate in candidates]
    if not ids:
        return f"no connection is called {host} any more; `connmgr ssh-config` prints the hosts."
    # Somebody may have removed the file of an open socket; ssh runs this on the daemon's machine.
    is_open = {socket.connection for socket in client.multiplex.query() if Path(socket.path).is_socket()}
    answer = client.multiplex.config(_program(), [], ids)
    entry = next((entry for entry in answer.hosts if host in entry.names), None)
    if entry is None:
        if len(candidates) > 1:
            paths = ", ".join(visible("+".join(candidate.name)) for candidate in candidates)
            return f"{host} is the name of several connections; call one by its path: {paths}."
        return f"{host} cannot be a host of ssh: `connmgr ssh-config` says which connections are left out."
    if entry.connection not in is_open:
        return f"the socket of {host} was not open, and is open now: run the command again."
    if port != entry.port:
        return f"{host} is a stored connection to port {entry.port}, not to {port}: leave the port out."
    if asking and not asking.startswith(_OPENSSH):
        return (
            f"{host} is reached by OpenSSH's ssh, at the daemon's control socket, and {visible(asking)} is another "
            f"client: have it run `ssh {host}`."
        )
    if entry.user is None:
        return f"{host} is a stored connection that does not say whom it logs in as: leave the user out."
    return (
        f"{host} is a stored connection that logs in as {entry.user}: leave the user out, and options about HostName "
        "and the control socket (-S, ControlPath), which Emacs and Ansible give by themselves; docs/TOOLS.md says how "
        f"to turn that off. {_UNLESS_FORWARDED}"
    )


def _hosts(name: Name) -> list[str]:
    """Return the names that a connection may have as a host."""
    return [LOCAL] if name.id == LOCAL_MACHINE else [name.name[-1], "+".join(name.name)]
