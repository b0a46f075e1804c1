"""Inventories of Ansible, in INI or YAML: groups, their variables, and the hosts that they name."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from connmgr.cli.declarative.document import ENCRYPTED, load
from connmgr.cli.exits import Failure

ALL, UNGROUPED = "all", "ungrouped"

MAX_HOSTS = 20_000
"""Most hosts in an inventory; each host of a range counts."""

VAULT = "$ANSIBLE_VAULT;"
_SECTION = re.compile(r"\[([^\]:]+)(?::(children|vars))?\]\s*(?:[#;].*)?")
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::(\d+))?\]")
_SIX = re.compile(r"\[(?P<host>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\](?::(?P<port>\d+))?")
_PORT = re.compile(r"(?P<host>.*?):(?P<port>\d+)")


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
            self.group(group).hosts[name] = None
            own = self.hosts.setdefault(name, {})
            own |= {**({} if port is None else {"ansible_port": port}), **variables}
        if len(self.hosts) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")


class Lineage:
    """The tree of an inventory's groups."""

    def __init__(self, inventory: Inventory) -> None:
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
        named = [name for name in self._members.get(host, ()) if name not in (ALL, UNGROUPED)]
        return sorted(named, key=lambda name: -len(self._paths[name]))

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
            parents = [parent for parent in self._parents[name] if parent != ALL]
            if not parents:
                break
            name = parents[0]
        return tuple(reversed([part for part in path if part not in (ALL, UNGROUPED)]))


def read(path: Path) -> Inventory:
    """Return the inventory in the file ``path``.

    :raises Failure: it is encrypted, or is not an inventory; the message names the place.
    """
    text = path.read_text("utf-8", "replace")
    if text.startswith(VAULT):
        raise Failure(f"{path} is encrypted by ansible-vault: `ansible-vault view {path}` shows its content.")
    inventory = Inventory()
    if path.suffix in (".yml", ".yaml", ".json") or text.lstrip().startswith("---"):
        _read_yaml(inventory, load(text, str(path)), str(path))
    else:
        _read_ini(inventory, text.splitlines(), str(path))
    return inventory


def _read_ini(inventory: Inventory, lines: Iterable[str], file: str) -> None:
    group, kind = UNGROUPED, ""
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#;":
            continue
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
            raise Failure(f"{file}:{number}: {error}.") from None


def _assignment(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not sign:
        raise ValueError(f"{word!r} is not of the form name=value")
    return name, value


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


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
    at = 0
    for span in _RANGE.finditer(pattern):
        fixed += [[pattern[at : span.start()]], list(_span(span[1], span[2], int(span[3] or 1)))]
        at = span.end()
    rest = pattern[at:]
    if "[" in rest:
        raise ValueError(f"{pattern}: a range is written as [01:20] or [a:f]")
    return ("".join(parts) for parts in product(*fixed, [rest]))


def _span(first: str, last: str, step: int) -> Iterator[str]:
    first = first or "0"
    letters = string.ascii_letters
    if first.isdecimal() and last.isdecimal() and step and int(first) <= int(last):
        width = len(first) if first.startswith("0") else 0
        numbers = range(int(first), min(int(last), int(first) + MAX_HOSTS * step) + 1, step)
        return (str(number).zfill(width) for number in numbers)
    if len(first) == len(last) == 1 and first in letters and last in letters and step and first <= last:
        return iter(letters[letters.index(first) : letters.index(last) + 1 : step])
    raise ValueError(f"[{first}:{last}] is not a range: write [01:20] or [a:f]")
