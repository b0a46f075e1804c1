"""Connections to an OpenSSH server: the daemon's, and OpenSSH's own client's."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator

from tests.daemon import Daemon
from tests.plugins.sshd import Sshd


def ssh_connection(daemon: Daemon, server: Sshd) -> str:
    """Add a connection to ``server`` and return its uuid."""
    key = " ".join(server.host_keys[0].with_suffix(".pub").read_text().split()[:2])
    data = {"type": "ssh", "host": "127.0.0.1", "port": server.port, "user": server.user, "hostKey": key}
    data["identity"] = {"file": str(server.client_key)}
    return str(daemon.client.post("/connection/add", name="files", data=data, validate=False)["connection"])


@contextlib.contextmanager
def master(server: Sshd) -> Iterator[list[str]]:
    """Open a connection of OpenSSH's own client; yield the options that use it."""
    control = server.directory / "control"
    known = server.directory / "known_hosts"
    known.write_text(server.known_hosts())
    options = ["-F", "none", "-o", f"ControlPath={control}", "-o", f"UserKnownHostsFile={known}"]
    target = ["-p", str(server.port), "-i", str(server.client_key), f"{server.user}@127.0.0.1"]
    master = subprocess.Popen(["ssh", *options, "-M", "-N", *target])
    deadline = time.monotonic() + 20
    while not control.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("ssh does not connect")
        time.sleep(0.01)
    try:
        yield options
    finally:
        master.terminate()
        master.wait(20)
