"""SSH against the public suite: to a host, and through another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from connmgr.plugin import Transport
from connmgr.testing import ConnectionConformance, StreamConformance, UnixStreamConformance, connect
from connmgr_ssh import Ssh
from tests.plugins.ssh.conftest import public_key
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh")

GATEWAY = "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11"


@pytest.fixture(scope="class")
def kept() -> Iterator[dict[str, Transport]]:
    """Links that stay open from test to test, each listed after its gateway."""
    links: dict[str, Transport] = {}
    yield links
    for link in reversed(links.values()):
        link.close()


class TestSsh(ConnectionConformance, StreamConformance, UnixStreamConformance):
    @pytest.fixture
    def kind(self, ssh: Ssh) -> Ssh:
        return ssh

    @pytest.fixture
    def data(self, sshd: Sshd) -> Mapping[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": sshd.port,
            "user": sshd.user,
            "identity": {"file": str(sshd.client_key)},
            "hostKey": public_key(sshd.host_keys[0]),
        }

    @pytest.fixture
    def transport(self, kept: dict[str, Transport], connected: Callable[[], Transport]) -> Transport:
        """The previous test's link, or a new one if that test has closed it."""
        if "link" not in kept or not kept["link"].alive:
            kept["link"] = connected()
        return kept["link"]


class TestSshThroughAGateway(TestSsh):
    @pytest.fixture
    def data(self, sshd: Sshd) -> Mapping[str, Any]:
        return {**TestSsh.data.__wrapped__(self, sshd), "gateway": GATEWAY}

    @pytest.fixture
    def via(self, kept: dict[str, Transport], kind: Ssh, sshd: Sshd) -> Transport:
        if "gateway" not in kept:
            kept["gateway"] = connect(kind, TestSsh.data.__wrapped__(self, sshd))
        return kept["gateway"]
