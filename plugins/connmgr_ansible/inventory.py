"""The connections of a vault as hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable
from ansible.utils.unsafe_proxy import wrap_var

from connmgr.client import Client, ClientError, Name
from connmgr.client.names import full_path, telling
from connmgr.client.sessions import connect
from connmgr_ansible.connection import PROGRAM, Connection

ANSWER_SECONDS = 60.0
TEMPLATE = re.compile(r"\{[{%#]")
"""A text that matches would be evaluated by Ansible as a Jinja template."""

SHELL = "shell"
"""The ``usage`` of connections that run commands."""


class InventoryModule(BaseInventoryPlugin, Constructable):
    """Adds a host for each connection, and groups: for each category and its parents, for labels, for facts."""

    NAME = "connmgr.connmgr.connmgr"
    connection = Connection
    """Loaded here, so that the process that Ansible forks for each task need not load it."""

    def verify_file(self, path: str) -> bool:
        """Whether ``path`` may be a file of this plugin."""
        return bool(super().verify_file(path)) and Path(path).suffix in (".yml", ".yaml")

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Read the file at ``path``, and add the connections that it chooses."""
        super().parse(inventory, loader, path, cache)
        # A misspelled `names` or `where` would choose all connections.
        if unknown := sorted(option for option in self._read_config_data(path) if not self.has_option(option)):
            raise AnsibleParserError(
                f"{path} has the option {unknown[0]!r}, which this inventory does not know: `ansible-doc -t inventory "
                f"{self.NAME}` lists its options."
            )
        try:
            with connect(PROGRAM, ANSWER_SECONDS, token_file=self.get_option("token_file")) as client:
                connections = self._select(client)
                machines = self._machines(client, connections)
        except ClientError as error:
            raise AnsibleParserError(error.message) from error
        hosts = self._hosts(connections, machines)
        for connection in connections:
            if TEMPLATE.search(full_path(connection)):
                self.display.warning(
                    f"Left out, because Ansible would evaluate its name as a template: {connection.id}"
                )
                continue
            self._add(connection, hosts[connection.id], machines.get(connection.id))
        # Groups of the options have names that are known only now.
        if both := sorted(set(hosts.values()) & set(self.inventory.groups)):
            raise AnsibleParserError(
                f"The connection {both[0]!r} has the name of a group, for which Ansible would take it: rename the "
                "connection, or change the option that makes the group."
            )

    def _select(self, client: Client) -> list[Name]:
        connections: dict[str, Name] = {}
        where = self.get_option("where")
        for category, kind in product(self.get_option("categories"), self.get_option("types")):
            within = client.connection.choose(category=category, type=kind, usage=SHELL, where=where)
            connections.update((connection.id, connection) for connection in within)
        # Each name is looked up in the whole vault: a name that others share stays ambiguous, and an unknown one fails.
        ids = {connection.id for connection in client.connection.choose(*self.get_option("names"), usage=SHELL)}
        connections = {id: connection for id, connection in connections.items() if id in ids}
        return sorted(connections.values(), key=lambda connection: (connection.category, connection.name))

    def _machines(self, client: Client, connections: list[Name]) -> dict[str, Any]:
        """Return labels and facts by the connections' ids, all facts but packages."""
        ids = [connection.id for connection in connections]
        return {machine.connection: machine for machine in (client.fact.query(ids) if ids else [])}

    def _hosts(self, connections: list[Name], machines: Mapping[str, Any]) -> dict[str, str]:
        """Return the hosts' names by the connections' ids: as short as they can be, but never that of a group.

        In place of a group Ansible takes the host of that name, and the host "localhost" for the machine where it runs.
        """
        taken = {*constants.LOCALHOST, *self.inventory.groups}
        for connection in connections:
            taken.update(self._groups_of_category(connection))
            if (machine := machines.get(connection.id)) is not None:
                taken.update(map(self._sanitize_group_name, self._groups(machine.labels, machine.facts)))
        by_id = {connection.id: connection for connection in connections}
        return {id: full_path(by_id[id]) if host in taken else host for id, host in telling(connections).items()}

    def _add(self, connection: Name, host: str, machine: Any) -> None:
        self.inventory.add_host(host)
        labels = {} if machine is None else self._plain(machine.labels)
        facts = {} if machine is None else self._plain(machine.facts)
        # What others chose stays text in whatever is composed of it: two harmless values together may be a template,
        # which Ansible before 2.19 evaluates unless it knows that it must not.
        chosen = {
            "connmgr_name": connection.path,
            "connmgr_category": "/".join(connection.category),
            "connmgr_labels": labels,
            "connmgr_facts": facts,
        }
        variables = {
            "ansible_connection": self.connection.transport,
            "connmgr_connection": connection.id,
            "connmgr_type": connection.type,
            **wrap_var(chosen),
        }
        for variable, value in variables.items():
            self.inventory.set_variable(host, variable, value)
        parent = None
        for name in self._groups_of_category(connection):
            group = self.inventory.add_group(name)
            # As Ansible's own inventories: the group of a category has the groups of the categories below it.
            if parent is not None:
                self.inventory.add_child(parent, group)
            parent = group
        if parent is not None:
            self.inventory.add_child(parent, host)
        for name in self._groups(labels, facts):
            self.inventory.add_child(self.inventory.add_group(self._sanitize_group_name(name)), host)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict=strict)

    def _groups_of_category(self, connection: Name) -> list[str]:
        """Return the groups of a connection's category and of those above, the uppermost first."""
        depths = range(1, len(connection.category) + 1)
        return [self._sanitize_group_name("_".join(connection.category[:depth])) for depth in depths]

    def _groups(self, labels: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
        """Return the groups of a host by its labels, and by the facts that the option `fact_groups` names."""
        groups = [f"label_{name}_{value}" if value else f"label_{name}" for name, value in labels.items()]
        return groups + [f"fact_{name}_{facts[name]}" for name in self.get_option("fact_groups") if name in facts]

    def _plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` without those that Ansible would evaluate as templates."""
        plain = {name: value for name, value in values.items() if not TEMPLATE.search(str(value))}
        for name in values.keys() - plain.keys():
            self.display.warning(f"Left out, because Ansible would evaluate it as a template: the value of {name}")
        return plain
