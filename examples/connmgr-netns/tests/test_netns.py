import os

import pytest
from connmgr_netns import Netns

from connmgr.errors import ShellStartFailed
from connmgr.plugin import ValidationError
from connmgr.testing import MemoryTransport, WrapperConformance, connect

HOST = "f0ec68aa-63f5-405c-b178-9a4454556d6b"


@pytest.mark.skipif(os.geteuid() != 0, reason="nsenter needs root")
class TestNetns(WrapperConformance):
    @pytest.fixture
    def kind(self):
        return Netns()

    @pytest.fixture
    def data(self):
        return {"host": HOST, "namespace": "/proc/self/ns/net"}


def test_a_relative_path_is_refused():
    with pytest.raises(ValidationError, match="absolute"):
        Netns().schema().load({"host": HOST, "namespace": "netns/blue"})


def test_the_reason_for_a_failure_is_told():
    def nsenter(process):
        process.write_error(b"nsenter: reassociate to namespace 'ns/net' failed: Operation not permitted\n")
        return 1

    machine = MemoryTransport({"nsenter": nsenter})
    transport = connect(Netns(), {"host": HOST, "namespace": "/run/netns/blue"}, machine)
    with pytest.raises(ShellStartFailed, match=r"No shell in /run/netns/blue: .*not permitted"):
        transport.open_channel(["true"], timeout=10)
    assert machine.started[0][:3] == ["nsenter", "--net=/run/netns/blue", "--"]
    machine.close()
