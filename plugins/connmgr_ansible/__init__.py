"""What the collection ``connmgr.connmgr`` runs.

Ansible compiles a collection's files anew in each of its processes, of which it has one a task and host. These modules
are compiled once.
"""

from pathlib import Path

CONNECTION_PLUGINS = (
    Path(__file__).parents[1] / "ansible_collections" / "connmgr" / "connmgr" / "plugins" / "connection"
)
"""The directory in which Ansible finds the connection plugin by the name ``connmgr``, if it is told to look there."""
