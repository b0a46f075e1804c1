"""``connmgr import-ssh-config`` and ``import-ansible-inventory``: the hosts of other tools' files as connections."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from connmgr.ansible_inventory import (
    ENCRYPTED,
    KEYS,
    STATED,
    VAULT,
    Inventory,
    Lineage,
    Unmappable,
    Unreadable,
    host_data,
    read_ini,
    text_of,
)
from connmgr.cli.connect import ask_passphrase, connect
from connmgr.cli.declarative.document import load
from connmgr.cli.declarative.plan import LEFT_OUT, NEW, Entry, Stored, To, carry_out, in_order, judge_import, show
from connmgr.cli.exits import Failure
from connmgr.cli.output import json_option
from connmgr.cli.progress import waiting
from connmgr.cli.selection import category_path
from connmgr.errors import ConnmgrError

if TYPE_CHECKING:
    from connmgr_ssh.config import ConfigFiles, Destination, JumpHost


_VERSIONS = ("1.1", "1.2")
_ITERATIONS = 10_000
_KEY_BYTES, _BLOCK_BYTES = 32, 16


class DecryptedText(str):
    """A text that was encrypted."""

    __slots__ = ()


class VaultPasswords:
    """The passwords that are tried, one after the other, as Ansible does."""

    def __init__(self, passwords: Sequence[str] = ()) -> None:
        self._passwords = [password.encode() for password in passwords]

    def __bool__(self) -> bool:
        return bool(self._passwords)

    def decrypt(self, text: str) -> DecryptedText | None:
        """Return what was encrypted, or None if no password opens ``text`` or it is malformed."""
        head, _, body = text.strip().partition("\n")
        version = head.removeprefix(VAULT).split(";")
        if not head.startswith(VAULT) or version[0] not in _VERSIONS or version[1:2] != ["AES256"]:
            return None
        try:
            # Hexadecimal digits of three lines that are hexadecimal digits themselves.
            salt, code, content = map(binascii.unhexlify, binascii.unhexlify("".join(body.split())).split(b"\n"))
        except ValueError:
            return None
        for password in self._passwords:
            keys = hashlib.pbkdf2_hmac("sha256", password, salt, _ITERATIONS, 2 * _KEY_BYTES + _BLOCK_BYTES)
            cipher_key, code_key, counter = keys[:32], keys[32:64], keys[64:]
            if hmac.compare_digest(hmac.digest(code_key, content, "sha256"), code):
                return _decrypt(content, cipher_key, counter)
        return None


def _decrypt(content: bytes, key: bytes, counter: bytes) -> DecryptedText | None:
    # Imported here, because few imports need it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    decryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).decryptor()
    padded = decryptor.update(content) + decryptor.finalize()
    try:
        # PKCS#7: each byte of the padding is its length.
        return DecryptedText(padded[: -padded[-1]].decode())
    except (IndexError, UnicodeDecodeError):
        return None


def read(path: Path, passwords: VaultPasswords | None = None) -> Inventory:
    """Return the inventory in the file ``path``; ``passwords`` open what ansible-vault has encrypted.

    :raises Failure: it is encrypted, or is not an inventory; the message names the place.
    """
    passwords = passwords or VaultPasswords()
    text = path.read_text("utf-8", "replace")
    if text.startswith(VAULT):
        opened = passwords.decrypt(text)
        if opened is None:
            why = "no given password opens it" if passwords else "give its password (--vault-password-file)"
            raise Failure(f"{path} is encrypted by ansible-vault: {why}.")
        text = opened
    inventory = Inventory()
    if path.suffix in (".yml", ".yaml", ".json") or text.lstrip().startswith("---"):
        _read_yaml(inventory, load(text, str(path), passwords.decrypt), str(path))
        return inventory
    try:
        read_ini(inventory, text.splitlines(), str(path))
    except Unreadable as error:
        raise Failure(str(error)) from None
    return inventory


def _read_yaml(inventory: Inventory, content: Any, file: str) -> None:
    pending: list[tuple[str | None, Any, Any]]
    pending = [(None, name, body) for name, body in _mapping(content, file, "its groups").items()]
    seen: set[tuple[str | None, Any, int]] = set()
    while pending:
        parent, name, body = pending.pop(0)
        # A YAML alias may put one body in any number of places.
        if (parent, name, id(body)) in seen:
            continue
        seen.add((parent, name, id(body)))
        group = inventory.group(str(name))
        if parent is not None:
            inventory.group(parent).children[group.name] = None
        parts = _mapping(body, file, f"the group {name}")
        group.variables |= _mapping(parts.get("vars"), file, f"the variables of {name}")
        for pattern, variables in _mapping(parts.get("hosts"), file, f"the hosts of {name}").items():
            try:
                inventory.add(group.name, str(pattern), _mapping(variables, file, f"the variables of {pattern}"))
            except ValueError as error:
                raise Failure(f"{file}: {error}.") from None
        children = _mapping(parts.get("children"), file, f"the groups below {name}")
        pending += [(group.name, child, inner) for child, inner in children.items()]


def _mapping(value: Any, file: str, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or value is ENCRYPTED:
        raise Failure(f"{file}: {what} must be a mapping of names.")
    return value


USUAL = Path("~/.ssh/config")

_OF_USUAL = frozenset({"type", "host"})
"""The daemon reads ~/.ssh/config itself, so a host of it is stored by its alias alone."""

_IF_SAID = frozenset({"hostKeyChecking", "sendEnv", "setEnv"})
_OF_OTHERS = _OF_USUAL | {"port", "user", "identity.file", "identity.certificate", "gateway"}
Command = TypeVar("Command", bound=Callable[..., Any])


def import_options(command: Command) -> Command:
    """Give a command the options of an import, for :func:`run`."""
    command = json_option(command)
    command = click.option("--category", metavar="PATH", help="Where to put them; created if missing.")(command)
    update = "Change stored connections with other data, too."
    command = click.option("--update", is_flag=True, help=update)(command)
    return click.option("--apply", is_flag=True, help="Add them. Default: change nothing.")(command)


@click.command(name="import-ssh-config")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@import_options
def import_ssh_config(file: Path | None, **options: Any) -> None:
    """Show or add the hosts of an SSH configuration.

    It shows which hosts would become connections; with --apply it adds them. Hosts of ~/.ssh/config are added by their
    alias: the daemon reads that file for each connection, so later changes of the file apply. Hosts of another FILE are
    added with its HostName, Port, User, first IdentityFile, StrictHostKeyChecking, SendEnv, SetEnv, and ProxyJump as a
    connection to go through. Hosts with a ProxyCommand are left out. Settings that are ignored, such as LocalForward,
    are listed beside their host. Hosts that are stored already are not added again. A connection of another type with
    the same name is not changed. With --update a stored ssh connection gets what the configuration says of its host;
    its password, passphrase and whatever else no configuration says stay. All are stored in one step, or none.
    """
    run_import(lambda: _read(file), **options)


def _read(file: Path | None) -> Iterator[Entry]:
    """Yield the hosts of ``file``, each after its gateways."""
    from connmgr_ssh.config import ConfigFiles

    path = file or USUAL.expanduser()
    usual = path.resolve() == USUAL.expanduser().resolve()
    files = ConfigFiles()
    aliases = files.aliases(path)
    hosts = _Hosts(None if usual else path, files, set(aliases))
    for alias in aliases:
        try:
            yield from hosts.usual(alias) if usual else hosts.explicit(alias)
        except ConnmgrError as error:
            yield hosts.left_out(alias, error.message)


class _Hosts:
    """The hosts of ``file``, or of the usual files if None; ``named`` are the hosts that it names."""

    def __init__(self, file: Path | None, files: ConfigFiles, aliases: set[str]) -> None:
        self._file = file
        self._files = files
        self._aliases = aliases
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
        # Marked before its gateways are followed, so that a host that jumps through itself ends.
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
        if name in self._aliases:
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
    notes = [f"ignored: {', '.join(destination.unheeded)}"] if destination.unheeded else []
    if destination.forwards_agent:
        notes.append("ForwardAgent is left to forwardAgent=true")
    more = f" ({'; '.join([*lost, *notes])})" if lost or notes else ""
    return f"{destination.user}@{destination}{jumps}{more}"


def _lost(destination: Destination) -> list[str]:
    """Return what the data of a connection cannot say of ``destination``."""
    lost = []
    if len(destination.identity_files or ()) > 1:
        lost.append("the first IdentityFile alone")
    if destination.host_key_alias:
        lost.append("without HostKeyAlias")
    return lost


METHODS = ("sudo", "su", "doas")

SECRETS = {
    "ansible_password": "password",
    "ansible_ssh_pass": "password",
    "ansible_ssh_password": "password",
    "ansible_ssh_private_key_passphrase": "identity.passphrase",
}
"""Variables that hold a secret, and the field of a connection for it."""

SECRETS_OF_BECOME = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
LEADING_ELSEWHERE = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_paramiko_proxy_command")

_STATED = STATED | {"elevated", "method"}
"""The fields of connections that an inventory states."""

BESIDE = ("group_vars", "host_vars")
"""Directories beside an inventory in which Ansible looks for more variables."""


@click.command(name="import-ansible-inventory")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--vault-password-file",
    "password_files",
    metavar="FILE",
    type=click.File(),
    multiple=True,
    help="A password of ansible-vault; - is stdin. Repeatable.",
)
@click.option("--ask-vault-password", is_flag=True, help="Ask for a password of ansible-vault.")
@import_options
def import_ansible_inventory(
    file: Path, password_files: tuple[IO[str], ...], *, ask_vault_password: bool, **options: Any
) -> None:
    """Show or add the hosts of an Ansible inventory.

    It shows which would become connections; with --apply it adds them. FILE is an inventory in INI or YAML, with ranges
    (web[01:20]). The group of a host becomes its category, below the groups above it; of several groups the deepest one
    does. The connection has ansible_host, ansible_port, ansible_user, ansible_ssh_private_key_file and
    ansible_connection (ssh or local). ansible_become makes a connection in that of the host, elevated by
    ansible_become_method to ansible_become_user.

    With a password of ansible-vault its encrypted values are read, and connections that are added get the passwords
    among them, sealed in the vault. Other passwords are not read: the list says how to give them. It also says what has
    no counterpart. All are stored in one step, or none. With --update a stored connection gets what the inventory says
    of it; its password and whatever else no inventory says stay.
    """
    texts = [source.read().strip() for source in password_files]
    if ask_vault_password:
        texts.append(ask_passphrase("Password of ansible-vault"))
    passwords = VaultPasswords([text for text in texts if text])
    for name in BESIDE:
        if (file.parent / name).exists():
            click.echo(f"{file.parent / name} is not read; what it says of hosts is missing here.", err=True)
    run_import(lambda: _entries(file, passwords), **options)


def _entries(file: Path, passwords: VaultPasswords) -> Iterator[Entry]:
    inventory = read(file, passwords)
    try:
        lineage = Lineage(inventory)
    except Unreadable as error:
        raise Failure(f"{file}: {error}") from None
    for name, own in inventory.hosts.items():
        variables = {**lineage.variables(name), **own}
        groups = lineage.of(name)
        host = Entry(name, category=lineage.path(groups[0]) if groups else None, states=_STATED)
        try:
            host.data, note = host_data(name, variables)
        except Unmappable as problem:
            host.leave_out(str(problem))
            yield host
            continue
        host.secrets = _secrets(host, variables)
        host.note = "; ".join(
            [note, *(f"also in {group}" for group in groups[1:]), *_unused_variables(host, variables)]
        )
        if host.data["type"] == "local":
            # The local machine stays in its category.
            host.category = None
        yield host
        yield from _become_entry(host, variables)


def _become_entry(host: Entry, variables: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the elevated connection in ``host`` for its ansible_become, if it has one."""
    try:
        if (text_of(variables, "ansible_become") or "no").lower() not in ("yes", "true", "1", "on"):
            return
        user, method = text_of(variables, "ansible_become_user") or "root", _method(variables)
    except Unmappable as problem:
        left_out = Entry(f"{host.key}/become")
        left_out.leave_out(str(problem))
        yield left_out
        return
    key = f"{host.key}/{user}"
    password = next(
        (secret for name in SECRETS_OF_BECOME if isinstance(secret := variables.get(name), DecryptedText)), None
    )
    unread = [
        name for name in SECRETS_OF_BECOME if name in variables and not isinstance(variables[name], DecryptedText)
    ]
    secrets = [f"{variable} is not read: {_asks(key, 'password')}" for variable in unread]
    yield Entry(
        key,
        {"type": "shellEnvironment", "host": To(host.key), "elevated": True, "user": user, "method": method},
        name=user,
        path=(host.key, user),
        category=host.category,
        note="; ".join([f"by {method}", *([WITH_SECRETS] if password else []), *secrets]),
        states=_STATED,
        secrets={"password": str(password)} if password else {},
    )


def _method(variables: Mapping[str, Any]) -> str:
    method = (text_of(variables, "ansible_become_method") or "sudo").removeprefix("ansible.builtin.")
    if method not in METHODS:
        raise Unmappable(f"ansible_become_method={method} has no counterpart")
    return method


WITH_SECRETS = "if added, with secrets that ansible-vault had encrypted"


def _secrets(host: Entry, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the secrets of a host that ansible-vault had encrypted, by their places in the data."""
    opened = {
        field: str(variables[name]) for name, field in SECRETS.items() if isinstance(variables.get(name), DecryptedText)
    }
    if host.data["type"] == "local":
        return {}
    # A passphrase needs the key that it opens.
    return {
        field: secret for field, secret in opened.items() if "." not in field or field.partition(".")[0] in host.data
    }


def _unused_variables(host: Entry, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on variables of a host that its connection does not take over."""
    name = host.key
    if host.secrets:
        yield WITH_SECRETS
    for variable, field in SECRETS.items():
        if variable in variables and field not in host.secrets:
            yield f"{variable} is not read: {_asks(name, field)}"
    for variable in LEADING_ELSEWHERE:
        if variables.get(variable):
            yield f"{variable} is not taken: `connmgr edit {name} gateway=…` leads through another connection"
    key = text_of(variables, *KEYS)
    if key and not key.startswith(("/", "~/")):
        yield f"the key {key} is not taken: its path is relative"


def _asks(connection: str, field: str) -> str:
    return f"`connmgr edit {connection} --secret {field}` asks for it"


def run_import(
    read: Callable[[], Iterable[Entry]], *, apply: bool, update: bool, category: str | None, as_json: bool
) -> None:
    """Compare the entries of ``read`` with the vault, show them, and with ``apply`` store them in one step."""
    client = connect()
    above = None if category is None else category_path(client, category)
    with waiting("reading and comparing"):
        entries = in_order(_in_category(read(), above))
        judge_import(entries, Stored(client), update=update)
    for entry in entries:
        if entry.outcome == NEW:
            _give(entry)
    if apply:
        carry_out(client, entries)
    does = "adds those that are new, and changes the others" if update else "adds those that are new"
    show(entries, as_json=as_json, advice=f"--apply {does}.")


def _give(entry: Entry) -> None:
    """Put the secrets of an entry into its data."""
    for place, secret in entry.secrets.items():
        *above, name = place.split(".")
        inner = entry.data
        for member in above:
            inner = inner[member]
        inner[name] = secret


def _in_category(entries: Iterable[Entry], above: tuple[str, ...] | None) -> Iterator[Entry]:
    """Yield ``entries``, each in the category that it names below ``above``."""
    for entry in entries:
        if above is not None:
            entry.category = (*above, *(entry.category or ()))
        yield entry
