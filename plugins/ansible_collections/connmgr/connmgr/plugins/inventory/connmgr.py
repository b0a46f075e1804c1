"""The inventory plugin ``connmgr.connmgr.connmgr``, where Ansible looks for it."""

from __future__ import annotations

from connmgr_ansible.inventory import InventoryModule

__all__ = ["InventoryModule"]

DOCUMENTATION = """
name: connmgr
short_description: the connections of a connmgr daemon as hosts
description:
  - Each connection that runs commands is a host, with the name that C(connmgr ls) shows.
  - Each category is a group, a child of the group of the category above it.
  - A host has the variables C(connmgr_connection), which is the connection's uuid, C(connmgr_name), C(connmgr_category)
    and C(connmgr_type), and C(ansible_connection). No other data of a connection is passed on.
  - Each label is a group, such as C(label_env_prod), and so are the facts that I(fact_groups) names, such as
    C(fact_os_id_debian). C(connmgr_labels) and C(connmgr_facts) have them all, except for packages.
author: connmgr
options:
  plugin:
    description: Marks the file as an inventory of this plugin.
    required: true
    choices: [connmgr.connmgr.connmgr]
  names:
    description:
      - Names and patterns of connections. A pattern without C(/) is held against last names, one with it against paths.
      - One that means no connection is an error.
    type: list
    elements: str
    default: ["*"]
  categories:
    description: GLOBs, one of which matches the category.
    type: list
    elements: str
    default: ["*"]
  types:
    description: GLOBs, one of which matches the type of the connection.
    type: list
    elements: str
    default: ["*"]
  where:
    description:
      - A condition on labels and facts that a connection must fulfil, such as C(env=prod and os.id=debian).
    type: str
  fact_groups:
    description: Facts whose values make groups.
    type: list
    elements: str
    default: [os.id, os.version, arch]
  token_file:
    description:
      - File with the token whose connections become hosts, instead of the one that CONNMGR_TOKEN, CONNMGR_TOKEN_FILE or
        CONNMGR_API_KEY_FILE name. Without any of them all connections do. Tasks do not use it; they have
        C(connmgr_token_file).
    type: path
    ini:
      - section: connmgr
        key: token_file
extends_documentation_fragment: [constructed]
"""

EXAMPLES = """
# fleet.yml
plugin: connmgr.connmgr.connmgr
categories: [fleet/**]
types: [ssh, shellEnvironment]
keyed_groups:
  - prefix: type
    key: connmgr_type
compose:
  ansible_python_interpreter: "'/usr/bin/python3'"
"""
