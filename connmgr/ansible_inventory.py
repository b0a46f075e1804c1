"""Inventories of Ansible: groups, their variables, the hosts that they name, and the connections that those would be.

It reads the form of INI, and the JSON that ``ansible-inventory --list`` and inventory scripts print. The command line
adds YAML, for which it has the library.
"""

from __future__ import annotations

import json
import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, Final

ALL, UNGROUPED = "all", "ungrouped"

MAX_HOSTS = 20_000
"""Most hosts in an inventory; each host of a range counts."""

MAX_GROUPS, MAX_DEPTH = 5000, 64
"""Most groups in an inventory, and most within each other."""

MAX_LINE = 16 * 1024
"""Most characters of a line: shlex takes the time of their square for a long word."""

MAX_RANGES, LONGEST_NUMBER = 16, 20
"""Most ranges of a name, and most digits of their numbers, which leading zeros make as long as the names."""

VAULT = "$ANSIBLE_VAULT;"
"""With which a text begins that ansible-vault has encrypted."""

SSH_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh")
LOCAL_CONNECTIONS = ("local", "ansible.builtin.local")
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")

STATED = frozenset({"type", "host", "port", "user", "identity.file"})
"""The fields of connections that an inventory states of its hosts."""

_SECTION = re.compile(r"\[([^\]:]+)(?::(children|vars))?\]\s*(?:[#;].*)?")
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::(\d+))?\]")
_SIX = re.compile(r"\[(?P<host>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\](?::(?P<port>\d+))?")
_PORT = re.compile(r"(?P<host>.*?):(?P<port>\d+)")


class Encrypted:
    """The type of :data:`ENCRYPTED`."""


ENCRYPTED: Final = Encrypted()
"""Stands for a variable that ansible-vault has encrypted."""


class Unreadable(Exception):
    """The text is not an inventory; it names the place."""


class Unmappable(Exception):
    """A variable has a value that no connection can have; the text names it."""


@dataclass
class Group:
    """A group: the names of the hosts in it and of the groups below it, and variables for all of these."""

    name: str
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


class Inventory:
    """The content of a file; groups and hosts are in the order in which they are first named."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.hosts: dict[str, dict[str, Any]] = {}
        """The variables of each host itself, without those of its groups."""

    def group(self, name: str) -> Group:
        """Return the group ``name``, created if new."""
        return self.groups.setdefault(name, Group(name))

    def add(self, group: str, pattern: str, variables: Mapping[str, Any]) -> None:
        """Put the hosts that ``pattern`` stands for into ``group``.

        :raises ValueError: the pattern is malformed, or there are too many hosts.
        """
        names, port = _address(pattern)
        for name in names:
            self.name(group, name, {**({} if port is None else {"ansible_port": port}), **variables})

    def name(self, group: str, host: str, variables: Mapping[str, Any]) -> None:
        """Put one host into ``group``.

        :raises ValueError: there are too many hosts.
        """
        self.group(group).hosts[host] = None
        self.hosts.setdefault(host, {}).update(variables)
        if len(self.hosts) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")


class Lineage:
    """The tree of an inventory's groups.

    :raises Unreadable: they are too many, or too deep within each other.
    """

    def __init__(self, inventory: Inventory) -> None:
        if len(inventory.groups) > MAX_GROUPS:
            raise Unreadable(f"{len(inventory.groups):,} groups; an inventory has {MAX_GROUPS:,} at most.")
        self._groups = inventory.groups
        self._parents: dict[str, list[str]] = {name: [] for name in inventory.groups}
        for group in inventory.groups.values():
            for child in group.children:
                self._parents[child].append(group.name)
        self._paths = {name: self._path(name) for name in inventory.groups}
        self._members: dict[str, list[str]] = {}
        for group in inventory.groups.values():
            for host in group.hosts:
                self._members.setdefault(host, []).append(group.name)

    def path(self, group: str) -> tuple[str, ...]:
        """Return the names from the outermost group to this one, by each group's first parent, without ``all``."""
        return self._paths[group]

    def of(self, host: str) -> list[str]:
        """Return the groups that name ``host``, the deepest first."""
        groups = [name for name in self._members.get(host, ()) if name not in (ALL, UNGROUPED)]
        return sorted(groups, key=lambda name: -len(self._paths[name]))

    def variables(self, host: str) -> dict[str, Any]:
        """Return the variables that ``host`` gets from its groups; deeper groups win."""
        above = {ALL} & self._groups.keys()
        pending = list(self._members.get(host, ()))
        while pending:
            name = pending.pop()
            if name not in above:
                above.add(name)
                pending += self._parents[name]
        merged: dict[str, Any] = {}
        for name in sorted(above, key=lambda name: (name != ALL, len(self._paths[name]), name)):
            merged |= self._groups[name].variables
        return merged

    def _path(self, name: str) -> tuple[str, ...]:
        path: list[str] = []
        while name not in path:
            path.append(name)
            if len(path) > MAX_DEPTH:
                raise Unreadable(f"The group {path[0]} is within more than {MAX_DEPTH} others.")
            parents = [parent for parent in self._parents[name] if parent != ALL]
            if not parents:
                break
            name = parents[0]
        return tuple(reversed([part for part in path if part not in (ALL, UNGROUPED)]))


def read_ini(inventory: Inventory, lines: Iterable[str], file: str) -> None:
    """Add the content of an inventory in the form of INI, of which a list of hosts is the simplest.

    :raises Unreadable: a line is malformed.
    """
    group, kind = UNGROUPED, ""
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#;":
            continue
        if len(line) > MAX_LINE:
            raise Unreadable(f"{file}:{number}: The line has more than {MAX_LINE:,} characters.")
        section = _SECTION.fullmatch(line)
        try:
            if section:
                group, kind = section[1].strip(), section[2] or ""
                inventory.group(group)
            elif kind == "vars":
                name, _, value = line.partition("=")
                inventory.group(group).variables[name.strip()] = _unquoted(value.strip())
            elif kind == "children":
                child = line.partition("#")[0].strip()
                inventory.group(group).children[child] = None
                inventory.group(child)
            else:
                name, *assignments = shlex.split(line, comments=True)
                inventory.add(group, name, dict(map(_assignment, assignments)))
        except ValueError as error:
            raise Unreadable(f"{file}:{number}: {error}.") from None


def _assignment(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not sign:
        # The word is not repeated: it may be a part of a password that has a space.
        raise ValueError("a word is not of the form name=value; put a value with spaces in quotes")
    return name, value


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _address(pattern: str) -> tuple[list[str], int | None]:
    """Return the names that a host pattern stands for, and its port."""
    six = _SIX.fullmatch(pattern)
    if six:
        return [six["host"]], int(six["port"]) if six["port"] else None
    parts = _PORT.fullmatch(pattern)
    # A colon within brackets belongs to a range; several colons belong to an IPv6 address.
    outside = parts and _RANGE.sub("", parts["host"])
    port = int(parts["port"]) if parts and outside is not None and not set("[:") & set(outside) else None
    bare = parts["host"] if parts and port is not None else pattern
    names = list(islice(_expanded(bare), MAX_HOSTS + 1))
    return names, port


def _expanded(pattern: str) -> Iterator[str]:
    fixed: list[list[str]] = []
    at, count = 0, 1
    for number, span in enumerate(_RANGE.finditer(pattern)):
        # Before the next one: a few words of ranges would be more names than fit into memory.
        if number == MAX_RANGES:
            raise ValueError(f"a name has more than {MAX_RANGES} ranges")
        if count > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")
        fixed += [[pattern[at : span.start()]], list(_span(span[1], span[2], int(span[3] or 1)))]
        count *= len(fixed[-1])
        at = span.end()
    rest = pattern[at:]
    if "[" in rest:
        raise ValueError(f"{pattern[:100]}: a range is written as [01:20] or [a:f]")
    return ("".join(parts) for parts in product(*fixed, [rest]))


def _span(first: str, last: str, step: int) -> Iterator[str]:
    first = first or "0"
    letters = string.ascii_letters
    if max(len(first), len(last)) > LONGEST_NUMBER:
        raise ValueError(f"a range has a number of more than {LONGEST_NUMBER} digits")
    if first.isdecimal() and last.isdecimal() and step and int(first) <= int(last):
        width = len(first) if first.startswith("0") else 0
        numbers = range(int(first), min(int(last), int(first) + MAX_HOSTS * step) + 1, step)
        return (str(number).zfill(width) for number in numbers)
    if len(first) == len(last) == 1 and first in letters and last in letters and step and first <= last:
        return iter(letters[letters.index(first) : letters.index(last) + 1 : step])
    raise ValueError(f"[{first}:{last}] is not a range: write [01:20] or [a:f]")


def read_list(inventory: Inventory, text: str, source: str) -> None:
    """Add what ``ansible-inventory --list``, or an inventory script, has printed.

    :raises Unreadable: it is not JSON of that form.
    """
    try:
        content = _object(json.loads(text), source)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{source}: it is not JSON: {error}.") from None
    variables = _object(_object(content.get("_meta"), source).get("hostvars"), source)
    try:
        for name, body in content.items():
            if name == "_meta":
                continue
            # A script may say of a group its hosts alone.
            parts = {"hosts": body} if isinstance(body, list) else _object(body, source)
            group = inventory.group(name)
            group.variables |= _object(parts.get("vars"), source)
            for child in _names(parts.get("children"), source):
                group.children[child] = None
                inventory.group(child)
            for host in _names(parts.get("hosts"), source):
                inventory.name(name, host, _object(variables.get(host), source))
        for host, own in variables.items():
            if host not in inventory.hosts:
                inventory.name(UNGROUPED, host, _object(own, source))
    except ValueError as error:
        raise Unreadable(f"{source}: {error}.") from None


def _object(value: Any, source: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unreadable(f"{source}: it is JSON, but not what `ansible-inventory --list` prints.")
    return value


def _names(value: Any, source: str) -> list[str]:
    if not isinstance(value or [], list) or not all(isinstance(name, str) and name for name in value or ()):
        raise Unreadable(f"{source}: `hosts` and `children` of a group are lists of names.")
    return list(value or ())


def host_data(name: str, variables: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the data of a host's connection, and the address that it leads to.

    :raises Unmappable: no connection can be made of it.
    """
    kind = text_of(variables, "ansible_connection") or "ssh"
    if kind in LOCAL_CONNECTIONS:
        return {"type": "local"}, "this machine"
    if kind not in SSH_CONNECTIONS:
        raise Unmappable(f"ansible_connection={kind} has no counterpart")
    host = text_of(variables, "ansible_host", "ansible_ssh_host") or name
    port = text_of(variables, "ansible_port", "ansible_ssh_port")
    user = text_of(variables, "ansible_user", "ansible_ssh_user")
    key = text_of(variables, "ansible_ssh_private_key_file", "ansible_private_key_file")
    data: dict[str, Any] = {"type": "ssh", "host": host}
    if port:
        # int() takes no number of any length.
        if not port.isdecimal() or len(port) > 5:
            raise Unmappable("ansible_port is not a number")
        data["port"] = int(port)
    if user:
        data["user"] = user
    if key and key.startswith(("/", "~/")):
        data["identity"] = {"file": key}
    return data, f"{user}@{host}" if user else host


def text_of(variables: Mapping[str, Any], *names: str) -> str | None:
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
