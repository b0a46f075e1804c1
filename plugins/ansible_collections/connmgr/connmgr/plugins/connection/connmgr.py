"""The connection plugin ``connmgr.connmgr.connmgr``, where Ansible looks for it."""

from __future__ import annotations

from connmgr_ansible.connection import Connection

__all__ = ["Connection"]

DOCUMENTATION = """
name: connmgr
short_description: run tasks over the connections of a connmgr daemon
description:
  - Runs commands and transfers files over the links that the daemon keeps open, as the connection's user.
  - The host's name in the inventory is the name of a connection.
author: connmgr
options:
  connmgr_connection:
    description: Name or uuid of the connection, if it is neither the host's address nor its name in the inventory.
    vars:
      - name: connmgr_connection
  address:
    description: Name or uuid of the connection; ignored if no connection has it.
    vars:
      - name: ansible_host
  host:
    description: Name of the connection otherwise.
    vars:
      - name: inventory_hostname
  connmgr_token_file:
    description:
      - File with the token that tasks run with, instead of the one that CONNMGR_TOKEN, CONNMGR_TOKEN_FILE or
        CONNMGR_API_KEY_FILE name. Without any of them tasks run as the owner of the daemon.
    type: path
    ini:
      - section: connmgr
        key: token_file
    vars:
      - name: connmgr_token_file
  pipelining:
    description: Send modules to the standard input of Python, without a file on the host.
    type: boolean
    default: true
    env:
      - name: ANSIBLE_PIPELINING
    ini:
      - section: defaults
        key: pipelining
      - section: connection
        key: pipelining
    vars:
      - name: ansible_pipelining
"""
