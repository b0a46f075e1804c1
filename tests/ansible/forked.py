"""Ansible's programs, forked from a process that has loaded them (tests/spawner.py), which takes longer than most runs.

Each takes its settings from its own environment, but for the files of its own below the home directory, which are in
that of the spawner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ansible import constants
from ansible.cli import adhoc, inventory, playbook

PROGRAMS: dict[str, Callable[[], None]] = {
    "ansible": adhoc.main,
    "ansible-inventory": inventory.main,
    "ansible-playbook": playbook.main,
}


def main() -> None:
    """Run the program that this process believes to be."""
    # Ansible has set these to write any character, which those that the spawner has made of them do not.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    # The directory was made when the constants were loaded, and the first process that ends would remove it.
    constants.DEFAULT_LOCAL_TMP = constants.config.get_config_value("DEFAULT_LOCAL_TMP")
    PROGRAMS[Path(sys.argv[0]).name]()
