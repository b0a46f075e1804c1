"""A running daemon while another version of connmgr, or none, is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import connmgr
from connmgr.client import LOCAL_MACHINE, ClientError
from tests.conftest import StartDaemon


def test_scripts_for_the_remote_host_are_those_of_the_daemon_s_start(start_daemon: StartDaemon, tmp_path: Path) -> None:
    copy = tmp_path / "installed"
    shutil.copytree(Path(connmgr.__file__).parent, copy / "connmgr")
    client = start_daemon(environment={"PYTHONPATH": str(copy)}).client
    client.shell.start(LOCAL_MACHINE)
    programs = [*copy.glob("connmgr/*/scripts/*")]
    assert programs
    for path in programs:
        path.unlink()
    assert client.fs.stat(LOCAL_MACHINE, "/").type == "directory"
    assert client.shell.exec(LOCAL_MACHINE, "cat", stdin="x" * 100_000).stdout == "x" * 100_000
    with pytest.raises(ClientError) as killed:
        client.shell.exec(LOCAL_MACHINE, "sleep 100", timeout=0.1)
    assert killed.value.code == "command_timeout", "a command is not killed once another version is installed"
