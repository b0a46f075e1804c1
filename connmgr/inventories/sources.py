"""The sources of inventories: a file, a program, Ansible; and what they say about hosts.

A source has a time and a number of bytes. Where it fails, nobody learns less than before: nothing is taken from what it
said until then.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from connmgr.ansible_inventory import (
    VAULT,
    Inventory,
    Lineage,
    Unmappable,
    Unreadable,
    host_data,
    read_ini,
    read_list,
)
from connmgr.contract.inventory import GROUP
from connmgr.errors import InventoryFailed
from connmgr.plugin import Deadline
from connmgr.plugin.outside import Unanswered, run_program
from connmgr.processes import environment_of_programs

MAX_BYTES = 64 << 20
"""Ansible's plugins print some kilobytes for each host."""

MAX_LIST = 8 << 20
"""Most characters of a list in lines, whose words take a second for each two million to take apart."""

LONGEST = 255

MAX_GROUPS = 48
"""Most groups of a host that become labels; connections have at most 64 of them, some of which are people's."""

COMPLAINT = 500
"""How many characters of the end of a program's complaint are told."""

ANSIBLE = "ansible-inventory"


@dataclass(frozen=True)
class HostSource:
    """Where hosts are listed: one of these is given."""

    ansible: str | None = None
    command: Sequence[str] | None = None
    file: str | None = None

    def read(self, seconds: float) -> str:
        """Return what the source says within ``seconds``.

        :raises InventoryFailed: it cannot be read, or says too much.
        """
        if self.file is not None:
            return _content(Path(self.file).expanduser())
        if self.command is not None:
            return _printed(self.command, seconds)
        beside = str(Path(sys.executable).parent)
        program = shutil.which(ANSIBLE) or shutil.which(ANSIBLE, path=beside)
        if program is None:
            raise InventoryFailed(
                f"{ANSIBLE} is not on the PATH of the daemon: install ansible-core there, or give a command or a file."
            )
        source = str(self.ansible)
        named = source if "," in source else str(Path(source).expanduser())
        if named is not source and not Path(named).exists():
            raise InventoryFailed(f"{named} does not exist on the daemon's machine.")
        return _printed([program, "-i", named, "--list"], seconds)


class ListedHost(NamedTuple):
    """A host as a source lists it: the data of its connection, and its groups as labels."""

    name: str
    data: dict[str, Any]
    labels: dict[str, str]


class HostList(NamedTuple):
    """What a source lists; ``left_out`` are hosts without a connection, and why."""

    hosts: list[ListedHost]
    left_out: list[tuple[str, str]]


def listed(text: str) -> HostList:
    """Return the hosts in what a source said.

    :raises InventoryFailed: it is not an inventory, or has no host.
    """
    if text.startswith(VAULT):
        raise InventoryFailed("The source is encrypted by ansible-vault: let a command print it in plain.")
    inventory = Inventory()
    try:
        if text.lstrip().startswith("{"):
            read_list(inventory, text, "the source")
        elif text.lstrip().startswith("---"):
            raise InventoryFailed("The source is YAML, which Ansible reads: give it as `ansible`.")
        elif len(text) > MAX_LIST:
            raise InventoryFailed(f"The source lists hosts in more than {MAX_LIST >> 20} MiB of lines.")
        else:
            read_ini(inventory, text.splitlines(), "line")
        if not inventory.hosts:
            # Otherwise an empty answer of a cloud's API would mark a whole fleet.
            raise InventoryFailed("The source lists no host at all, so nothing was changed.")
        return _mapped(inventory)
    except Unreadable as error:
        raise InventoryFailed(f"The source is not an inventory: {str(error)[:COMPLAINT]}") from None


def _mapped(inventory: Inventory) -> HostList:
    lineage, found, left_out = Lineage(inventory), dict[str, ListedHost](), list[tuple[str, str]]()
    for written, own in inventory.hosts.items():
        user, at, name = written.rpartition("@")
        variables = {**({"ansible_user": user} if at else {}), **lineage.variables(written), **own}
        try:
            data, _ = host_data(name, variables)
            _check(name, data)
        except Unmappable as problem:
            left_out.append((written[:LONGEST], f"{str(problem)[:COMPLAINT]}."))
            continue
        groups = list(dict.fromkeys(one for group in lineage.of(written) for one in lineage.path(group)))
        if len(groups) > MAX_GROUPS:
            left_out.append((written, f"Of its {len(groups)} groups only {MAX_GROUPS} became labels."))
        labels = dict.fromkeys(map(_label, groups[:MAX_GROUPS]), "")
        if name in found:
            left_out.append((written, "Another host has its name."))
        else:
            found[name] = ListedHost(name, data, labels)
    return HostList(list(found.values()), left_out)


def _label(group: str) -> str:
    """Return the label that stands for a group: names of labels have few characters."""
    return (GROUP + re.sub(r"[^a-z0-9_-]", "-", group.lower()))[:63]


def _check(name: str, data: dict[str, Any]) -> None:
    """Raise :class:`Unmappable` for what the vault would refuse, and all other hosts with it."""
    if data["type"] != "ssh":
        raise Unmappable("it is the daemon's machine, which every vault has")
    for what, text in (("its name", name), ("its address", data["host"]), ("its user", data.get("user", "x"))):
        if not text or len(text) > LONGEST or not text.isprintable() or re.search(r"\s", text) or text.startswith("-"):
            raise Unmappable(f"{what} is not one word of at most {LONGEST} characters without a hyphen in front")
    if not 1 <= data.get("port", 22) <= 65535:
        raise Unmappable("its port is not between 1 and 65535")


def _content(path: Path) -> str:
    try:
        # Without waiting: nobody may ever write into a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InventoryFailed(f"{path} is not a regular file on the daemon's machine.")
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InventoryFailed(f"{path} cannot be read on the daemon's machine: {error.strerror}.") from None
    if len(content) > MAX_BYTES:
        raise InventoryFailed(f"{path} says more than {MAX_BYTES >> 20} MiB.")
    return content.decode(errors="replace")


def _printed(argv: Sequence[str], seconds: float) -> str:
    """Return what a program prints; it and its children are ended where it takes too long or prints too much."""
    # By default it goes on where a source cannot be read, with fewer hosts or none.
    environment = environment_of_programs() | {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"}
    name = argv[0]
    try:
        said = run_program(argv, Deadline(seconds), environment=environment, limit=MAX_BYTES, directory=".")
    except Unanswered as why:
        if why.late:
            raise InventoryFailed(f"{name} took longer than {seconds:g} s and was ended: raise the timeout.") from None
        if isinstance(why.__cause__, OSError):
            raise InventoryFailed(f"{name} cannot be run on the daemon's machine: {why.__cause__.strerror}.") from None
        raise InventoryFailed(f"{name} printed more than {MAX_BYTES >> 20} MiB and was ended.") from None
    if said.code:
        printed = " ".join(said.complaint.decode(errors="replace").split())
        more = f": {printed[-COMPLAINT:]}" if printed else "."
        raise InventoryFailed(f"{name} {said.ending}{more}")
    return said.output.decode(errors="replace")
