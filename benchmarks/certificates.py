"""Opening a connection by a certificate on demand, beside opening it by a key file.

Run it with ``python -m benchmarks.certificates``. The server is a temporary sshd on loopback, which admits both; the
authority is the daemon's own. A call starts a shell over a new link, and stops it.
"""

from __future__ import annotations

import getpass
import os
from functools import partial

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_timings
from connmgr.client import Client
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation

CALLS, ROUNDS = 10, 10


def main() -> None:
    """Measure both ways in turns."""
    user = users.create() if os.geteuid() == 0 else None
    try:
        with privilege_separation(), temporary_daemon() as daemon:
            server = Sshd(user=user.name if user else getpass.getuser())
            try:
                _measure(daemon.client, server)
            finally:
                server.close()
    finally:
        if user:
            users.remove(user)


def _measure(client: Client, server: Sshd) -> None:
    trusted = server.directory / "authorities"
    trusted.write_text("\n".join(client.ca.init("bench")) + "\n")
    trusted.chmod(0o644)
    server.stop()
    server.options["TrustedUserCAKeys"] = str(trusted)
    server.start()
    data = {
        "type": "ssh",
        "host": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "hostKeyChecking": "acceptNew",
    }
    identities = {"key file": {"file": str(server.client_key)}, "certificate": {"certificate": {"signer": "bench"}}}
    ways = {name: client.connection.add(name, {**data, "identity": one}) for name, one in identities.items()}
    taken = interleaved(
        {name: partial(_opened, client, connection) for name, connection in ways.items()}, calls=CALLS, rounds=ROUNDS
    )
    print_timings(
        "/shell/start over a new link, and /shell/stop",
        taken,
        base="key file",
        repeat="python -m benchmarks.certificates",
    )


def _opened(client: Client, connection: str) -> None:
    client.shell.start(connection)
    client.shell.stop(connection)


if __name__ == "__main__":
    main()
