"""The bundled connection types against the public suite, as a third party tests its own; SSH is in its directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import connmgr_tunnels
from connmgr.testing import (
    ConnectionConformance,
    SchemaConformance,
    StreamConformance,
    UnixStreamConformance,
    WrapperConformance,
)
from connmgr_elevated import ShellEnvironment
from connmgr_local import Local
from tests.api.wire import LOCAL


class TestLocal(ConnectionConformance, StreamConformance, UnixStreamConformance):
    @pytest.fixture
    def kind(self) -> Local:
        return Local()

    @pytest.fixture
    def data(self) -> Mapping[str, Any]:
        return {"shell": "/bin/sh"}


class TestShellEnvironment(WrapperConformance):
    @pytest.fixture
    def kind(self) -> ShellEnvironment:
        return ShellEnvironment()

    @pytest.fixture
    def data(self) -> Mapping[str, Any]:
        return {"host": LOCAL, "shell": "/bin/sh"}


@pytest.mark.parametrize("kind", connmgr_tunnels.connmgr_connection_types(), ids=lambda kind: kind.name)
class TestTunnels(SchemaConformance):
    """Nothing runs in a tunnel; what goes through it is tested in tests/tunnels."""


@pytest.mark.needs("root", "sudo")
class TestSudo(TestShellEnvironment):
    @pytest.fixture
    def data(self) -> Mapping[str, Any]:
        return {"host": LOCAL, "shell": "/bin/sh", "elevated": True, "user": "root"}


@pytest.mark.needs("root", "su")
class TestSu(TestShellEnvironment):
    @pytest.fixture
    def data(self) -> Mapping[str, Any]:
        return {"host": LOCAL, "shell": "/bin/sh", "elevated": True, "method": "su", "user": "root"}
