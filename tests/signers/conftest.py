"""A real sshd that admits certificates alone, and the owner of a daemon with an authority that it trusts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.client import Client
from tests.daemon import Daemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation


class Host(Sshd):
    """An sshd that admits certificates alone; the authorities that it trusts change while it runs."""

    def __init__(self, user: str) -> None:
        super().__init__({"AuthorizedKeysFile": "none"}, user=user)
        self.stop()
        self.trusted = self.directory / "authorities"
        self.options["TrustedUserCAKeys"] = str(self.trusted)
        self.trust([])
        self.start()

    def trust(self, lines: list[str]) -> None:
        """Trust these authorities from the next login on."""
        self.trusted.write_text("".join(f"{line}\n" for line in lines))
        self.trusted.chmod(0o644)

    def data(self, **identity: Any) -> dict[str, Any]:
        """Return the data of a connection that logs in by certificate, of the signer ``team`` unless it is named."""
        certificate = {"signer": "team", **identity}
        return {
            "type": "ssh",
            "host": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "hostKeyChecking": "acceptNew",
            "identity": {"certificate": certificate},
        }


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    user = users.create() if os.geteuid() == 0 else None
    with privilege_separation():
        server = Host(user.name if user else getpass.getuser())
        yield server
        server.close()
    if user:
        users.remove(user)


@pytest.fixture
def owner(clean_daemon: Daemon, host: Host) -> Client:
    """The owner of a daemon with the authority ``team``, which the host trusts."""
    host.trust(clean_daemon.client.ca.init("team"))
    return clean_daemon.client
