"""``/inventory``: hosts that something else lists, as connections that follow that list."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from connmgr.contract.ca import NAME
from connmgr.contract.common import MAX_WORDS
from connmgr.contract.connection import CategoryPath
from connmgr.contract.message import ID, USER, Length, Message, Range, Wrong

INVENTORY: Final = "inventory"
HOST: Final = "inventory-host"
VANISHED: Final = "vanished"
GROUP: Final = "group-"
"""The labels that an inventory sets: its name, the name of the host there, since when the host is no longer listed,
and with this in front one for each group."""

LEAST_SECONDS, MOST_SECONDS = 1, 366 * 86400
MOST_TIMEOUT = 600
SECONDS: Final = 60.0

Name = Annotated[str, NAME, "The inventory's name, which is the value of the label `inventory` of its connections."]


class HostDefaults(Message):
    """What the data of an inventory's connections have where the source says nothing of it."""

    user: Annotated[str | None, USER, "The user to log in as."] = None
    port: Annotated[int | None, Range(1, 65535), "The port of the SSH server."] = None
    key_file: Annotated[str | None, Length(1, 4096), "A file with a private key, on the daemon's machine."] = None
    gateway: Annotated[str | None, ID, "The connection to go through."] = None


class InventoryNameRequest(Message):
    name: Name


class InventoryAddRequest(InventoryNameRequest):
    ansible: Annotated[
        str | None,
        Length(1, 4096),
        "What `ansible-inventory -i` takes on the daemon's machine: the path of an inventory or of a plugin's "
        "configuration, such as `/srv/aws_ec2.yml`. This, `command` or `file`.",
    ] = None
    command: Annotated[
        list[str] | None,
        Length(1, MAX_WORDS),
        "A program and its arguments, run on the daemon's machine as its user, that prints a host a line, or JSON as "
        "inventory scripts of Ansible do.",
    ] = None
    file: Annotated[
        str | None,
        Length(1, 4096),
        "A file on the daemon's machine with a host a line (`user@host:port`, `name ansible_host=10.0.0.7`), groups in "
        "brackets, or JSON as inventory scripts print it.",
    ] = None
    category: Annotated[
        CategoryPath | None, "The category of new connections, created if missing. Without it: one with its name."
    ] = None
    every: Annotated[
        float | None,
        Range(LEAST_SECONDS, MOST_SECONDS),
        "Seconds between two renewals. Without it: only `/inventory/renew` renews.",
    ] = None
    timeout: Annotated[
        float, Range(0, MOST_TIMEOUT, above=True), f"Seconds that the source may take. Without it: {SECONDS:g}."
    ] = SECONDS
    defaults: Annotated[HostDefaults | None, "For hosts of which the source does not say it."] = None
    replace: Annotated[bool, "True replaces the inventory of this name; its connections stay."] = False
    dry_run: Annotated[bool, "True stores nothing: the answer shows what would change."] = False

    def check(self) -> None:
        super().check()
        if sum(source is not None for source in (self.ansible, self.command, self.file)) != 1:
            raise Wrong("Give one of ansible, command and file.", "ansible")
        for name, path in (("ansible", self.ansible), ("file", self.file)):
            # `a,b,` is a list of hosts to Ansible. The daemon's directory is nobody's.
            if path is not None and not path.startswith(("/", "~/")) and not (name == "ansible" and "," in path):
                raise Wrong("Not an absolute path.", name)


class InventoryRenewRequest(InventoryNameRequest):
    dry_run: Annotated[bool, "True changes nothing: the answer shows what would change."] = False


class LeftOutHost(Message):
    host: Annotated[str, "The name of the host in the source."]
    reason: Annotated[str, "Why."]


class InventoryChanges(Message):
    hosts: Annotated[int, "How many hosts have a connection now."]
    added: Annotated[list[str], "Hosts that were new."]
    changed: Annotated[list[str], "Hosts of which the source says something else than before."]
    vanished: Annotated[list[str], "Hosts that are no longer listed; their connections got the label `vanished`."]
    returned: Annotated[list[str], "Hosts that had vanished, and are listed again."]
    left_out: Annotated[list[LeftOutHost], "Hosts without a connection."]


class InventoryInfo(Message):
    name: Annotated[str, "Its name."]
    ansible: Annotated[str | None, "Its source, if that is Ansible's."]
    command: Annotated[list[str] | None, "Its source, if that is a program."]
    file: Annotated[str | None, "Its source, if that is a file."]
    category: Annotated[list[str], "The category of new connections."]
    every: Annotated[float | None, "Seconds between two renewals; null: only on request."]
    timeout: Annotated[float, "Seconds that the source may take."]
    defaults: Annotated[Mapping[str, Any], "For hosts of which the source does not say it."]
    daemon: Annotated[str, "The name of the daemon on whose machine the source is; only that one renews it."]
    renewed: Annotated[datetime | None, "When it was renewed last."]
    next: Annotated[datetime | None, "When it is renewed next; null: only on request."]
    hosts: Annotated[int, "How many hosts were listed then, and have a connection."]
    vanished: Annotated[int, "How many connections belong to hosts that are no longer listed."]
    error: Annotated[str | None, "Why the last renewal failed, and changed nothing; null if it did not."]


class InventoryQueryRequest(Message):
    name: Annotated[str | None, NAME, "Only the one of this name."] = None


class InventoryQueryResponse(Message):
    inventories: Annotated[list[InventoryInfo], "By their names."]
