"""One deploy over the daemon's connections and over pyinfra's own SSH."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.components import program
from tests.fleet import Fleet

PYINFRA = Path(sys.prefix) / "pyinfra" / "bin" / "pyinfra"
"""It has its own environment, because it requires an older paramiko than the daemon's tests."""

DEPLOY = Path(__file__).parent / "deploy.py"
"""About thirty operations, which write only below the datum ``root``."""

DAEMON, SSH = "daemon", "ssh"


def sources(directory: Path, large: int = 0) -> Path:
    """Create the files that the deploy copies, one of them of ``large`` MiB."""
    (directory / "tree" / "below").mkdir(parents=True)
    for name in ("one", "two", "below/three"):
        (directory / "tree" / name).write_text(name)
    (directory / "bytes").write_bytes(bytes(range(256)))
    (directory / "large").write_bytes(os.urandom(1 << 20) * large)
    (directory / "script").write_text('#!/bin/sh\nprintf "%s, %s\\n" "$2" "$#" > "$1"\n')
    return directory


def inventories(fleet: Fleet, directory: Path, source: Path, large: Sequence[str] = ()) -> dict[str, Path]:
    """Write an inventory for each way and return the files; each way has its own ``root`` in ``directory``.

    The hosts in ``large`` get the large file of ``source``.
    """
    common = {"sources": str(source), "large": large, "sudo": bool(program("sudo")) and os.geteuid() == 0}
    server = {
        "ssh_port": fleet.server.port,
        "ssh_user": fleet.server.user,
        "ssh_key": str(fleet.server.client_key),
        "ssh_known_hosts_file": str(fleet.known_hosts),
        "ssh_config_file": "/dev/null",
    }
    hosts: dict[str, dict[str, Mapping[str, object]]] = {
        DAEMON: {"@connmgr/fleet/*": {}},
        SSH: {name: {**server, "ssh_hostname": address} for name, address in fleet.addresses.items()},
    }
    for way, data in hosts.items():
        root = directory / way
        root.mkdir()
        every = {"root": str(root), **common}
        text = f"hosts = {[(name, {**every, **own}) for name, own in data.items()]!r}\n"
        (directory / f"{way}.py").write_text(text)
    return {way: directory / f"{way}.py" for way in hosts}
