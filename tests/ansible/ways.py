"""One playbook over the daemon's connections and over Ansible's own SSH."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.components import program
from tests.fleet import HOSTS, Fleet, hosts_of

SITE = Path(__file__).parent / "playbooks" / "site.yml"
"""About thirty tasks, which write only below the variable ``root``."""

DAEMON, SSH = "daemon", "ssh"

FORKED = "tests.ansible.forked"
"""The module of Ansible's programs that are forked."""


def sources(directory: Path, large: int = 0) -> Path:
    """Create the files that the playbook copies, one of them of ``large`` MiB."""
    directory.mkdir()
    (directory / "bytes").write_bytes(bytes(range(256)))
    (directory / "large").write_bytes(os.urandom(1 << 20) * large)
    (directory / "script").write_text('#!/bin/sh\nprintf "%s, %s\\n" "$2" "$#" > "$1"\n')
    return directory


def inventories(
    fleet: Fleet,
    directory: Path,
    source: Path,
    large: Sequence[str] = (),
    names: Sequence[str] = HOSTS,
) -> dict[str, Path]:
    """Write an inventory for each way and return the files; each way has its own ``root`` in ``directory``.

    The hosts in ``large`` get the large file of ``source``.
    """
    common = {
        "sources": source,
        "large": "[{}]".format(", ".join(f'"{name}"' for name in large)),
        "sudo": bool(program("sudo")) and os.geteuid() == 0,
        "ansible_python_interpreter": sys.executable,
    }
    server = {
        "ansible_port": fleet.server.port,
        "ansible_ssh_private_key_file": fleet.server.client_key,
        "ansible_ssh_common_args": f"'{fleet.ssh_options}'",
    }
    addressed = [f"{name} ansible_host={fleet.addresses[name]}" for name in names]
    roots = {way: directory / way for way in (DAEMON, SSH)}
    texts = {
        DAEMON: hosts_of(names, root=roots[DAEMON], ansible_connection="connmgr.connmgr.connmgr", **common),
        SSH: hosts_of(addressed, root=roots[SSH], **common, **server),
    }
    for way, text in texts.items():
        roots[way].mkdir()
        (directory / f"{way}.ini").write_text(text)
    return {way: directory / f"{way}.ini" for way in texts}
