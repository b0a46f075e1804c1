"""The code of the collection ``connmgr.connmgr``.

Ansible starts a process for each task and host, and each compiles the collection's files again. These modules are
compiled once.
"""

from pathlib import Path

CONNECTION_PLUGINS = (
    Path(__file__).parents[1] / "ansible_collections" / "connmgr" / "connmgr" / "plugins" / "connection"
)
"""The directory with the connection plugin, for Ansible's setting ``connection_plugins``."""
