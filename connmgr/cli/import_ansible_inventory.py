"""``connmgr import-ansible-inventory``: stores the hosts of an inventory as connections, its groups as categories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from connmgr.cli.importing import import_options, run
from connmgr.cli.inventory import VAULT, Lineage, read
from connmgr.cli.plan import Entry
from connmgr.cli.stored import To
from connmgr.cli.yaml_file import ENCRYPTED

SSH_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh")
LOCAL_CONNECTIONS = ("local", "ansible.builtin.local")
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
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
_STATED = frozenset({"type", "host", "port", "user", "identity.file", "elevated", "method"})
"""The fields of connections that an inventory states."""

BESIDE = ("group_vars", "host_vars")
"""Directories beside an inventory in which Ansible looks for more variables."""


class Unmappable(Exception):
    """A variable has a value that no connection can have; the text names it."""


@click.command(name="import-ansible-inventory")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@import_options
def import_ansible_inventory(file: Path, **options: Any) -> None:
    """Show or add the hosts of an Ansible inventory.

    It shows which would become connections; with --apply it adds them. FILE is an inventory in INI or YAML, with ranges
    (web[01:20]). The group of a host becomes its category, below the groups above it; of several groups the deepest one
    does. The connection has ansible_host, ansible_port, ansible_user, ansible_ssh_private_key_file and
    ansible_connection (ssh or local). ansible_become makes a connection in that of the host, elevated by
    ansible_become_method to ansible_become_user.

    Passwords are not read, encrypted or not: the list says how to give them. It also says what has no counterpart. All
    are stored in one step, or none. With --update a stored connection gets what the inventory says of it; its password
    and whatever else no inventory says stay.
    """
    for name in BESIDE:
        if (file.parent / name).exists():
            click.echo(f"{file.parent / name} is not read; what it says of hosts is missing here.", err=True)
    run(lambda: _entries(file), **options)


def _entries(file: Path) -> Iterator[Entry]:
    inventory = read(file)
    lineage = Lineage(inventory)
    for name, own in inventory.hosts.items():
        variables = {**lineage.variables(name), **own}
        groups = lineage.of(name)
        host = Entry(name, category=lineage.path(groups[0]) if groups else None, states=_STATED)
        try:
            host.data, note = _host(name, variables)
        except Unmappable as problem:
            host.leave_out(str(problem))
            yield host
            continue
        host.note = "; ".join([note, *(f"also in {group}" for group in groups[1:]), *_untaken(name, variables)])
        if host.data["type"] == "local":
            # The local machine stays in its category.
            host.category = None
        yield host
        yield from _elevated(host, variables)


def _host(name: str, variables: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the data of a host's connection, and the address that it leads to."""
    kind = _text(variables, "ansible_connection") or "ssh"
    if kind in LOCAL_CONNECTIONS:
        return {"type": "local"}, "this machine"
    if kind not in SSH_CONNECTIONS:
        raise Unmappable(f"ansible_connection={kind} has no counterpart")
    host = _text(variables, "ansible_host", "ansible_ssh_host") or name
    port = _text(variables, "ansible_port", "ansible_ssh_port")
    user = _text(variables, "ansible_user", "ansible_ssh_user")
    key = _text(variables, "ansible_ssh_private_key_file", "ansible_private_key_file")
    data: dict[str, Any] = {"type": "ssh", "host": host}
    if port:
        if not port.isdecimal():
            raise Unmappable("ansible_port is not a number")
        data["port"] = int(port)
    if user:
        data["user"] = user
    if key and key.startswith(("/", "~/")):
        data["identity"] = {"file": key}
    return data, f"{user}@{host}" if user else host


def _elevated(host: Entry, variables: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the elevated connection in ``host`` for its ansible_become, if it has one."""
    try:
        if (_text(variables, "ansible_become") or "no").lower() not in ("yes", "true", "1", "on"):
            return
        user, method = _text(variables, "ansible_become_user") or "root", _method(variables)
    except Unmappable as problem:
        left_out = Entry(f"{host.key}/become")
        left_out.leave_out(str(problem))
        yield left_out
        return
    key = f"{host.key}/{user}"
    secrets = [
        f"{variable} is not read: {_asks(key, 'password')}" for variable in SECRETS_OF_BECOME if variable in variables
    ]
    yield Entry(
        key,
        {"type": "shellEnvironment", "host": To(host.key), "elevated": True, "user": user, "method": method},
        name=user,
        path=(host.key, user),
        category=host.category,
        note="; ".join([f"by {method}", *secrets]),
        states=_STATED,
    )


def _method(variables: Mapping[str, Any]) -> str:
    method = (_text(variables, "ansible_become_method") or "sudo").removeprefix("ansible.builtin.")
    if method not in METHODS:
        raise Unmappable(f"ansible_become_method={method} has no counterpart")
    return method


def _untaken(name: str, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on variables of a host that its connection does not take over."""
    for variable, field in SECRETS.items():
        if variable in variables:
            yield f"{variable} is not read: {_asks(name, field)}"
    for variable in LEADING_ELSEWHERE:
        if variables.get(variable):
            yield f"{variable} is not taken: `connmgr edit {name} gateway=…` leads through another connection"
    key = _text(variables, *KEYS)
    if key and not key.startswith(("/", "~/")):
        yield f"the key {key} is not taken: its path is relative"


def _asks(connection: str, field: str) -> str:
    return f"`connmgr edit {connection} --secret {field}` asks for it"


def _text(variables: Mapping[str, Any], *names: str) -> str | None:
    """Return the value of the first of ``names`` that is given.

    :raises Unmappable: only Ansible can evaluate it.
    """
    for name in names:
        value = variables.get(name)
        if value is None or value == "":
            continue
        if value is ENCRYPTED or str(value).startswith(VAULT):
            raise Unmappable(f"{name} is encrypted by ansible-vault")
        if "{{" in str(value) or "{%" in str(value):
            raise Unmappable(f"{name} is a template, which only Ansible fills in")
        if isinstance(value, dict | list):
            raise Unmappable(f"{name} is neither text nor a number")
        return str(value)
    return None
