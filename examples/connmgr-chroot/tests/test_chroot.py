import os

import pytest
from connmgr_chroot import Chroot

from connmgr.errors import ShellStartFailed
from connmgr.plugin import ValidationError
from connmgr.testing import MemoryTransport, WrapperConformance, connect

HOST = "f0ec68aa-63f5-405c-b178-9a4454556d6b"


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
class TestChroot(WrapperConformance):
    @pytest.fixture
    def kind(self):
        return Chroot()

    @pytest.fixture
    def data(self):
        return {"host": HOST, "directory": "/"}


def test_a_relative_directory_is_refused():
    with pytest.raises(ValidationError, match="absolute"):
        Chroot().schema().load({"host": HOST, "directory": "srv/jail"})


def test_the_reason_for_a_failure_is_told():
    def env(process):
        process.write_error(b"chroot: cannot change root directory to '/jail': Operation not permitted\n")
        return 125

    machine = MemoryTransport({"env": env})
    transport = connect(Chroot(), {"host": HOST, "directory": "/jail", "user": "build"}, machine)
    with pytest.raises(ShellStartFailed, match=r"No shell in /jail: .*not permitted"):
        transport.open_channel(["true"], timeout=10)
    assert machine.started[0][:5] == ["env", "SHELL=/bin/sh", "chroot", "--userspec=build", "/jail"]
    machine.close()
